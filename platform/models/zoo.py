"""The networks by name. Importing this costs no torch: a request can be checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from driftlab.errors import unknown_name

if TYPE_CHECKING:
    from torch import nn

ZOO: Mapping[str, str] = {
    "tiny": "segmentation student of four convolutions at a quarter of the resolution, 24 k parameters",
    "small": "tiny at one and a half times its width, 53 k parameters",
    "half": "tiny at half its width, 6 k parameters",
    "teacher": "segmentation network with skips and a view of the whole frame, 420 k parameters",
    "deeplabv3_mobilenet": "DeepLabV3 on MobileNetV3-Large as torchvision has it, 11 M parameters",
}


def build(name: str, classes: int, *, seed: int) -> nn.Module:
    """Make a network with random weights; the same seed gives the same weights and disturbs no other generator."""
    check(name)
    import torch

    from driftlab.platform.models import networks

    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return networks.MAKERS[name](classes)


def check(name: str) -> None:
    """Refuse a name that the zoo does not have."""
    if name not in ZOO:
        raise unknown_name("network", name, ZOO)
