"""Residual networks that torchvision lacks.

ResNet-56, SE-ResNet-18, ResNet-18 with CBAM, ResNeXt-29 and WRN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

Attention = Callable[[int], nn.Module]
MIN_HIDDEN = 4  # channels of the narrow layer of an attention


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a padded convolution without bias, and a batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (Hu et al., CVPR 2018): scale channels by a gate on their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(MIN_HIDDEN, width // 16)
        self.narrow, self.wide = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.wide(F.relu(self.narrow(x.mean(dim=(2, 3))))).sigmoid()
        return x * gate[:, :, None, None]


class Cbam(nn.Module):
    """CBAM (Woo et al., ECCV 2018): scale channels, then places, by gates on means and maxima."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(MIN_HIDDEN, width // 16)
        self.channels = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.places = nn.Sequential(nn.Conv2d(2, 1, 7, padding=3, bias=False), nn.BatchNorm2d(1, momentum=0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = (self.channels(x.mean(dim=(2, 3))) + self.channels(x.amax(dim=(2, 3)))).sigmoid()
        x = x * gate[:, :, None, None]
        summary = torch.cat([x.amax(dim=1, keepdim=True), x.mean(dim=1, keepdim=True)], dim=1)
        places: torch.Tensor = self.places(summary).sigmoid()
        return x * places


class BasicBlock(nn.Module):
    """Residual block: two 3x3 convolutions and an optional attention.

    The shortcut is projected if shapes differ.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, attention: Attention | None = None) -> None:
        super().__init__()
        self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3)
        self.attention = attention(outputs) if attention else nn.Identity()
        fits = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if fits else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.attention(self.second(F.relu(self.first(x)))) + self.shortcut(x))


class AggregatedBlock(nn.Module):
    """ResNeXt block (Xie et al., CVPR 2017): a bottleneck with a grouped convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, group_width: int) -> None:
        super().__init__()
        middle = groups * group_width * outputs // 256
        self.narrow = conv_norm(inputs, middle, 1)
        self.grouped = conv_norm(middle, middle, 3, stride, groups)
        self.wide = conv_norm(middle, outputs, 1)
        self.shortcut = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.wide(F.relu(self.grouped(F.relu(self.narrow(x))))) + self.shortcut(x))


class PreActivatedBlock(nn.Module):
    """WRN block (Zagoruyko and Komodakis, BMVC 2016): batch norm and ReLU before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.project = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = F.relu(self.norm(x))
        inner: torch.Tensor = self.conv2(F.relu(self.norm2(self.conv(active))))
        return inner + (x if self.project is None else self.project(active))


class StagedClassifier(nn.Module):
    """A stem, stages, and a linear layer on the mean features.

    Stages halve the resolution from the second on.
    """

    def __init__(self, stem: nn.Module, stages: list[nn.Module], last: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.stages, self.last = stem, nn.Sequential(*stages), last
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.last(self.stages(self.stem(images))).mean(dim=(2, 3)))
        return logits


def stages_of(
    block: Callable[[int, int, int], nn.Module], inputs: int, widths: list[int], depth: int
) -> list[nn.Module]:
    """Return stages of `depth` blocks; all stages except the first start with stride 2."""
    stages: list[nn.Module] = []
    for number, width in enumerate(widths):
        blocks = [block(inputs, width, 1 + (number > 0)), *(block(width, width, 1) for _ in range(depth - 1))]
        stages.append(nn.Sequential(*blocks))
        inputs = width
    return stages


def residual_56(classes: int) -> nn.Module:
    """Build ResNet-56 for 32 x 32 images (He et al., CVPR 2016): three stages of nine basic blocks."""
    stem = nn.Sequential(conv_norm(3, 16, 3), nn.ReLU())
    return StagedClassifier(stem, stages_of(BasicBlock, 16, [16, 32, 64], 9), nn.Identity(), 64, classes)


def four_stages(classes: int, width: int, stride: int) -> nn.Module:
    """Build four stages of two basic blocks, the second and third with stride 2."""
    stem = nn.Sequential(conv_norm(3, width, 3, stride), nn.ReLU())
    stages = stages_of(BasicBlock, width, [width, 2 * width, 4 * width], 2)
    stages += stages_of(BasicBlock, 4 * width, [4 * width], 2)
    return StagedClassifier(stem, stages, nn.Identity(), 4 * width, classes)


def residual_18(classes: int, attention: Attention) -> nn.Module:
    """Build ResNet-18 for 224 x 224 images with an attention in every block."""
    stem = nn.Sequential(conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    stages = stages_of(partial(BasicBlock, attention=attention), 64, [64, 128, 256, 512], 2)
    return StagedClassifier(stem, stages, nn.Identity(), 512, classes)


def aggregated_29(classes: int, groups: int = 8) -> nn.Module:
    """Build ResNeXt-29, 8 x 64d or of other groups, for 32 x 32 images."""
    stem = nn.Sequential(conv_norm(3, 64, 3), nn.ReLU())
    stages = stages_of(partial(AggregatedBlock, groups=groups, group_width=64), 64, [256, 512, 1024], 3)
    return StagedClassifier(stem, stages, nn.Identity(), 1024, classes)


def wide_residual(classes: int, depth: int, width: int) -> nn.Module:
    """Build WRN-depth-width for 32 x 32 images."""
    stem, widths = nn.Conv2d(3, 16, 3, padding=1, bias=False), [16 * width, 32 * width, 64 * width]
    last = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU())
    return StagedClassifier(stem, stages_of(PreActivatedBlock, 16, widths, (depth - 4) // 6), last, widths[-1], classes)
