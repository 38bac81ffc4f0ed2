"""The networks of this project.

They map normalised images [n, 3, height, width] to the outputs that their task decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.datasets.frames import MAX_PIXEL_CLASSES
from driftlab.errors import RequestError
from driftlab.platform.networks import light, named
from driftlab.platform.networks.box_head import RARE, BoxOutput
from driftlab.platform.networks.memory_format import choose_format
from driftlab.platform.networks.published import detection, library, residual, segmentation
from driftlab.platform.networks.resizing import resize
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.tasks.boxes import SIDES
from driftlab.platform.networks.tasks.tasks import SEGMENTATION

if TYPE_CHECKING:
    import torch
    from torch import nn


Norm = Callable[[int], nn.Module]  # of a number of channels


def _conv(
    inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1, norm: Norm = nn.BatchNorm2d
) -> nn.Sequential:
    """Return a 3x3 convolution with a norm and ReLU, the block of all networks here."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False),
        norm(outputs),
        nn.ReLU(inplace=True),
    )


def _standardise(images: torch.Tensor) -> torch.Tensor:
    """Standardise each channel of each frame: fewer training frames then cover all lighting conditions."""
    deviation, mean = torch.std_mean(images, dim=(2, 3), keepdim=True)
    return (images - mean) / (deviation + 0.05)


class _Trunk(nn.Module):
    """Four convolutions down to 1/4 of the resolution; the first feature map is kept for sharp borders."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _conv(3, width, stride=2)
        self.deep = nn.Sequential(
            _conv(width, 2 * width, stride=2), _conv(2 * width, 2 * width), _conv(2 * width, 2 * width, dilation=2)
        )

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Return context and local features at 1/2 of the resolution, concatenated: 3 * width channels."""
        first = self.first(images)
        return torch.cat([resize(self.deep(first), first), first], dim=1)


class StudentNetwork(_Trunk):
    """Segmentation network: a 1x1 convolution on the features predicts a class per pixel."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__(width)
        self.head = nn.Conv2d(3 * width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return resize(self.head(self.features(images)), images)


class Classifier(_Trunk):
    """Classification network: a linear layer on the mean features predicts a class per frame."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__(width)
        self.head = nn.Linear(3 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images).mean(dim=(2, 3)))
        return logits


class Detector(_Trunk, BoxOutput):
    """Detection network: a centre probability per class and the distances of the box sides, per place."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__(width)
        self.neck = _conv(3 * width, 2 * width)
        self.head = nn.Conv2d(2 * width, classes + SIDES, 1)
        if self.head.bias is not None:
            nn.init.constant_(self.head.bias[:classes], RARE)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.neck(self.features(images)))
        return output


class ResidualBlock(nn.Module):
    """Residual block of two convolutions; the shortcut is projected if the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.inner = _conv(inputs, outputs, stride=stride, norm=norm)
        self.outer = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), norm(outputs))
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut.extend([nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.outer(self.inner(x)) + self.shortcut(x))


class ResidualClassifier(nn.Module):
    """Classification network of two residual blocks, with the resolutions and channels of `_Trunk`."""

    def __init__(self, classes: int, width: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.first = _conv(3, width, stride=2, norm=norm)
        blocks = ((width, 2), (2 * width, 1))
        self.deep = nn.Sequential(*(ResidualBlock(old, 2 * width, stride=step, norm=norm) for old, step in blocks))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.deep(self.first(images)).mean(dim=(2, 3)))
        return logits


class DeepClassifier(nn.Module):
    """Classification network with the layout of VGG-16: thirteen convolutions in five stages."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        stages, inputs = [], 3
        for times, depth in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            outputs = times * width
            stages.append(nn.Sequential(_conv(inputs, outputs), *(_conv(outputs, outputs) for _ in range(depth - 1))))
            inputs = outputs
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stages[0](images)
        for stage in self.stages[1:]:
            x = stage(F.max_pool2d(x, 2))
        logits: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class FrameContext(nn.Module):
    """Scale each channel by a gate on the frame's mean features.

    The gates see the appearance, which is a property of the whole frame.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.gate(x)
        return x * gate


class TeacherNetwork(nn.Module):
    """Encoder-decoder with skip connections down to 1/8 of the resolution, wide enough for many scenes."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.stem = _conv(3, width, stride=2)
        self.quarter = nn.Sequential(_conv(width, 2 * width, stride=2), _conv(2 * width, 2 * width))
        self.eighth = nn.Sequential(
            _conv(2 * width, 3 * width, stride=2),
            _conv(3 * width, 3 * width, dilation=2),
            FrameContext(3 * width),
            _conv(3 * width, 3 * width, dilation=4),
        )
        self.up_quarter = _conv(5 * width, 2 * width)
        self.up_half = _conv(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        half = self.stem(_standardise(images))
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        x = self.up_quarter(torch.cat([resize(eighth, quarter), quarter], dim=1))
        x = self.up_half(torch.cat([resize(x, half), half], dim=1))
        return resize(self.head(x), images)


MAKERS: Mapping[str, Callable[[int], nn.Module]] = {
    "tiny": partial(StudentNetwork, width=16),
    "small": partial(StudentNetwork, width=24),
    "half": partial(StudentNetwork, width=8),
    "teacher": partial(TeacherNetwork, width=32),
    "tiny_classifier": partial(Classifier, width=16),
    "half_classifier": partial(Classifier, width=11),
    "twice_classifier": partial(Classifier, width=23),
    "wide_classifier": partial(Classifier, width=64),
    "tiny_residual": partial(ResidualClassifier, width=14),
    "wide_residual": partial(ResidualClassifier, width=56),
    "tiny_residual_gn": partial(ResidualClassifier, width=16, norm=partial(nn.GroupNorm, 8)),
    "deep_classifier": partial(DeepClassifier, width=8),
    "vgg16_cifar": partial(DeepClassifier, width=64),
    "tiny_staged": partial(residual.four_stages, width=8, stride=2),
    "staged": partial(residual.four_stages, width=16, stride=1),
    "tiny_detector": partial(Detector, width=16),
    "wide_detector": partial(Detector, width=48),
    "tiny_mobile": light.mobile_classifier,
    "tiny_mobile_segmenter": light.mobile_segmenter,
    "tiny_mobile_detector": light.mobile_detector,
    "deeplabv3_mobilenet": library.DeepLab,
    "deeplabv3_mobilenet_v2": segmentation.MobileDeepLab,
    "resnet56": residual.residual_56,
    "wrn_28_10": partial(residual.wide_residual, depth=28, width=10),
    "resnext29": residual.aggregated_29,
    "resnext29_2x64d": partial(residual.aggregated_29, groups=2),
    "senet18": partial(residual.residual_18, attention=residual.SqueezeExcite),
    "resnet18_cbam": partial(residual.residual_18, attention=residual.Cbam),
    "yolov3": detection.Yolo,
    "yolov3_tiny": detection.TinyYolo,
    **{name: partial(library.make, name) for name in library.CLASSIFIERS},
    "vit_small": partial(library.vision_transformer, name="vit_small", patch=16, layers=12, heads=6, width=384),
    "tiny_vit": partial(library.vision_transformer, name="tiny_vit", patch=4, layers=4, heads=3, width=48),
}


def build(name: str, classes: int, *, seed: int, size: tuple[int, int] = (64, 96)) -> nn.Module:
    """Build a network with random weights that depend on the seed only; other generators are unchanged.

    `size`, the height and width of the frames, is an argument of a user's factory.
    """
    if named.task_of(name) is SEGMENTATION and classes > MAX_PIXEL_CLASSES:
        raise RequestError(
            f"'{name}' names pixels, and a label map has a byte for each: "
            f"at most {MAX_PIXEL_CLASSES} classes, given {classes}."
        )
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        made = MAKERS[name](classes) if name in MAKERS else named.make(name, classes, size)
        return choose_format(name, make_safe(made))
