"""DeepLabV3 on MobileNetV2 without ASPP, the student of the AMS paper.

Sandler et al., CVPR 2018, Table 7.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

# Per stage: expansion, channels, blocks, stride, dilation. The last two stay at 1/16 of the resolution.
STAGES = (
    (1, 16, 1, 1, 1), (6, 24, 2, 2, 1), (6, 32, 3, 2, 1), (6, 64, 4, 2, 1), (6, 96, 3, 1, 1), (6, 160, 3, 1, 2),
    (6, 320, 1, 1, 2),
)  # fmt: skip
HEAD = 256  # channels of each half of the head


def conv_norm(
    inputs: int, outputs: int, kernel: int = 1, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return a convolution without bias, a batch norm and ReLU6."""
    padding = kernel // 2 * dilation
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Inverted residual: expand, depthwise convolution, project; with a shortcut if shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, dilation: int) -> None:
        super().__init__()
        wide = expansion * inputs
        filtered = conv_norm(wide, wide, 3, stride=stride, groups=wide, dilation=dilation)
        narrow = [nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.inner = nn.Sequential(*([conv_norm(inputs, wide)] if expansion > 1 else []), filtered, *narrow)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(x)
        return x + inner if self.adds else inner


class MobileDeepLab(nn.Module):
    """Segmentation network on features of each place and of the whole frame (image pooling)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        inputs, stages = 32, []
        self.stem = conv_norm(3, inputs, 3, stride=2)
        for expansion, outputs, count, stride, dilation in STAGES:
            strides = [stride] + [1] * (count - 1)
            widths = [inputs] + [outputs] * (count - 1)
            blocks = [
                InvertedResidual(width, outputs, expansion, step, dilation)
                for width, step in zip(widths, strides, strict=True)
            ]
            stages.append(nn.Sequential(*blocks))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.place, self.frame = conv_norm(inputs, HEAD), nn.Sequential(nn.Conv2d(inputs, HEAD, 1), nn.ReLU6())
        self.join, self.head = conv_norm(2 * HEAD, HEAD), nn.Conv2d(HEAD, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.stem(images))
        place = self.place(x)
        frame = self.frame(x.mean(dim=(2, 3), keepdim=True)).expand_as(place)
        logits = self.head(self.join(torch.cat([place, frame], dim=1)))
        return F.interpolate(logits, size=images.shape[-2:], mode="bilinear", align_corners=False)
