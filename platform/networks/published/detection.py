"""YOLOv3 (Redmon and Farhadi, 2018) and YOLOv3-tiny with the centre-point output of all detectors."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.networks.box_head import RARE, BoxOutput
from driftlab.platform.networks.tasks.boxes import SIDES, STRIDE


def leaky(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm and leaky ReLU, the layer of these networks."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class DarknetBlock(nn.Module):
    """Residual block: a narrow and a wide convolution, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(leaky(width, width // 2, 1), leaky(width // 2, width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(x)
        return x + inner


def last_layer(inputs: int, classes: int, *, class_bias: float = 0.0) -> nn.Conv2d:
    """Return the output layer: a channel per class, with an initial bias, and one per side of the box."""
    layer = nn.Conv2d(inputs, classes + SIDES, 1)
    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
        nn.init.constant_(layer.bias[:classes], class_bias)
    return layer


class Output(nn.Sequential):
    """The head of a scale: a wide convolution and the output layer."""

    def __init__(self, width: int, classes: int, *, class_bias: float = 0.0) -> None:
        super().__init__(leaky(width, 2 * width, 3), last_layer(2 * width, classes, class_bias=class_bias))


class Scales(nn.Module, BoxOutput):
    """Base of both networks: outputs of several scales, summed in the grid of all detectors.

    In the paper each scale has three anchors with a box, a confidence and classes. Here all scales contribute to one
    grid of centres and sides; coarse features contribute the large objects.
    """

    @abstractmethod
    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs of each scale."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size = [math.ceil(side / STRIDE) for side in images.shape[-2:]]
        grids = [F.interpolate(grid, size=size, mode="bilinear", align_corners=False) for grid in self.maps(images)]
        return torch.stack(grids).sum(dim=0)


class Yolo(Scales):
    """YOLOv3: Darknet-53 and three scales; `width` is that of the stem.

    Each scale has features of the next coarser one.
    """

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.stem, self.stages = leaky(3, width, 3), nn.ModuleList()
        inputs, wide = width, [2 * width, 4 * width, 8 * width, 16 * width, 32 * width]
        for outputs, depth in zip(wide, (1, 2, 8, 8, 4), strict=True):
            blocks = (DarknetBlock(outputs) for _ in range(depth))
            self.stages.append(nn.Sequential(leaky(inputs, outputs, 3, 2), *blocks))
            inputs = outputs
        _, fine, middle, coarse, deep = wide
        necks = _neck(deep, coarse), _neck(coarse + middle, middle), _neck(middle + fine, fine)
        self.necks = nn.ModuleList(necks)
        self.downs = nn.ModuleList([leaky(coarse, middle, 1), leaky(middle, fine, 1)])
        heads = Output(coarse, classes), Output(middle, classes), Output(fine, classes, class_bias=RARE)
        self.heads = nn.ModuleList(heads)

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        x, features = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        outputs = []
        for number, (neck, head) in enumerate(zip(self.necks, self.heads, strict=True)):
            if number:
                finer = features[-1 - number]
                x = torch.cat([_resize(self.downs[number - 1](x), finer), finer], dim=1)
            x = neck(x)
            outputs.append(head(x))
        return outputs


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
        self.fine = nn.Sequential(leaky(256 + 128, 256, 3), last_layer(256, classes, class_bias=RARE))

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
