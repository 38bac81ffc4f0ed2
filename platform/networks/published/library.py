"""Networks of torchvision, without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from driftlab._torchvision import import_torchvision
from driftlab.errors import needed_import, unknown_name
from driftlab.platform.networks.zoo import IMAGENET, ZOO, Input

CLASSIFIERS = (
    "resnet18", "resnet50", "vgg16", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "shufflenet_v2_x1_0",
    "squeezenet1_1",
)  # fmt: skip


def models() -> Any:
    """Return torchvision's models; raises an error with the fix if the import fails."""
    with needed_import(
        "This network needs torchvision",
        "Install torch and torchvision from the same index (see `driftlab doctor`), or use another network: "
        "`driftlab list networks`.",
    ):
        import_torchvision()
        import torchvision.models
        import torchvision.models.segmentation
    return torchvision.models


class Published(nn.Module):
    """A network with another input: other mean and deviation, or a fixed size."""

    def __init__(self, network: nn.Module, expects: Input) -> None:
        super().__init__()
        self.network = network
        self.expects = expects

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.network(self.expects.convert(images))
        return output


class PublishedPixels(Published):
    """A segmenter whose output is torchvision's dictionary."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(self.expects.convert(images))["out"]
        return logits


class DeepLab(nn.Module):
    """DeepLabV3 on MobileNetV3-Large, with a tensor as output instead of torchvision's dictionary."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        maker = models().segmentation.deeplabv3_mobilenet_v3_large
        self.network = maker(weights=None, weights_backbone=None, num_classes=classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(images)["out"]
        return logits


def make(name: str, classes: int) -> Published:
    """Build a classifier by its name in torchvision."""
    maker: Callable[..., nn.Module] = getattr(models(), name)
    return Published(maker(weights=None, num_classes=classes), ZOO[name].input)


def has_pixels(name: str) -> bool:
    """Return whether a network of torchvision predicts a class per pixel."""
    pixels, frames = (models().list_models(module=module) for module in (models().segmentation, models()))
    if name not in (*pixels, *frames):
        raise unknown_name("network of torchvision", name, (*pixels, *frames))
    return name in pixels


def make_any(name: str, classes: int) -> Published:
    """Build a classifier or segmenter by its name in torchvision, with the input of ImageNet."""
    if not has_pixels(name):
        return Published(models().get_model(name, weights=None, num_classes=classes), IMAGENET)
    network = models().get_model(name, weights=None, weights_backbone=None, num_classes=classes)
    return PublishedPixels(network, IMAGENET)


def vision_transformer(classes: int, *, name: str, patch: int, layers: int, heads: int, width: int) -> Published:
    """Build a vision transformer with perceptrons of four times its width."""
    side, _ = ZOO[name].input.size or (0, 0)
    network = models().VisionTransformer(side, patch, layers, heads, width, 4 * width, num_classes=classes)
    return Published(network, ZOO[name].input)
