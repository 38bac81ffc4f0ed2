"""YOLOv3 (Redmon and Farhadi, 2018) and its tiny version, read like the lab's other detectors."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.tasks.boxes import SIDES, STRIDE

RARE = -4.0  # of centres: the scales together begin here


def leaky(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return the layer of these networks: convolution, batch norm, leaky ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class DarknetBlock(nn.Module):
    """A narrow and a wide convolution added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(leaky(width, width // 2, 1), leaky(width // 2, width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return x + made


def last(inputs: int, classes: int, *, least: float = 0.0) -> nn.Conv2d:
    """Return a layer that tells a number for each class and side at every place; those of classes begin at `least`."""
    layer = nn.Conv2d(inputs, classes + SIDES, 1)
    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
        nn.init.constant_(layer.bias[:classes], least)
    return layer


class Output(nn.Sequential):
    """The head of a scale: a wide convolution before the last one."""

    def __init__(self, width: int, classes: int, *, least: float = 0.0) -> None:
        super().__init__(leaky(width, 2 * width, 3), last(2 * width, classes, least=least))


class Scales(nn.Module):
    """Base of both: outputs of several scales, added in the grid of the lab's detectors.

    As published each scale has three anchors with a box, a confidence and the classes. The lab's detectors tell a
    centre and its sides instead, in one grid; the scales share it, and large things are told by coarse features.
    """

    @abstractmethod
    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs of each scale."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size = [math.ceil(side / STRIDE) for side in images.shape[-2:]]
        grids = [F.interpolate(one, size=size, mode="bilinear", align_corners=False) for one in self.maps(images)]
        return torch.stack(grids).sum(dim=0)


class Yolo(Scales):
    """YOLOv3: Darknet-53, and three scales that hand their features down to the next finer one."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        inputs, depths = 32, {64: 1, 128: 2, 256: 8, 512: 8, 1024: 4}
        self.stem, self.stages = leaky(3, inputs, 3), nn.ModuleList()
        for width, depth in depths.items():
            self.stages.append(nn.Sequential(leaky(inputs, width, 3, 2), *(DarknetBlock(width) for _ in range(depth))))
            inputs = width
        self.necks = nn.ModuleList([_neck(1024, 512), _neck(512 + 256, 256), _neck(256 + 128, 128)])
        self.downs = nn.ModuleList([leaky(512, 256, 1), leaky(256, 128, 1)])
        self.heads = nn.ModuleList([Output(512, classes), Output(256, classes), Output(128, classes, least=RARE)])

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        x, features = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        made = []
        for number, (neck, head) in enumerate(zip(self.necks, self.heads, strict=True)):
            if number:
                finer = features[-1 - number]
                x = torch.cat([_resize(self.downs[number - 1](x), finer), finer], dim=1)
            x = neck(x)
            made.append(head(x))
        return made


class TinyYolo(Scales):
    """YOLOv3-tiny: seven convolutions with pooling between them, and two scales."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256)
        pairs = zip((3, *widths), widths, strict=False)
        self.local = nn.ModuleList([leaky(inputs, outputs, 3) for inputs, outputs in pairs])
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), leaky(256, 512, 3), nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1), leaky(512, 1024, 3)
        )
        self.neck, self.down = leaky(1024, 256, 1), leaky(256, 128, 1)
        self.coarse = Output(256, classes)
        self.fine = nn.Sequential(leaky(256 + 128, 256, 3), last(256, classes, least=RARE))

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = images
        for number, layer in enumerate(self.local):
            x = layer(F.max_pool2d(x, 2) if number else x)
        deep = self.neck(self.deep(x))
        finer = torch.cat([_resize(self.down(deep), x), x], dim=1)
        return [self.coarse(deep), self.fine(finer)]


def _neck(inputs: int, width: int) -> nn.Sequential:
    """Return the five convolutions between two scales."""
    rest = [layer for _ in range(2) for layer in (leaky(width, 2 * width, 3), leaky(2 * width, width, 1))]
    return nn.Sequential(leaky(inputs, width, 1), *rest)


def _resize(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, size=like.shape[-2:], mode="nearest")
