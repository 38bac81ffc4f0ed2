"""The networks by name. Importing this module does not import torch, so that a request can be checked first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.datasets.frames import MAX_PIXEL_CLASSES
from driftlab.errors import RequestError, unknown_name
from driftlab.platform.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo: its task and a summary."""

    task: Task
    summary: str


ZOO: Mapping[str, ZooEntry] = {
    "tiny": ZooEntry(SEGMENTATION, "student of four convolutions at a quarter of the resolution, 24 k parameters"),
    "small": ZooEntry(SEGMENTATION, "tiny at one and a half times its width, 53 k parameters"),
    "half": ZooEntry(SEGMENTATION, "tiny at half its width, 6 k parameters"),
    "teacher": ZooEntry(SEGMENTATION, "skips and a view of the whole frame, 420 k parameters"),
    "deeplabv3_mobilenet": ZooEntry(
        SEGMENTATION, "DeepLabV3 on MobileNetV3-Large as torchvision has it, 11 M parameters"
    ),
    "tiny_classifier": ZooEntry(CLASSIFICATION, "tiny with one answer for the whole frame, 24 k parameters"),
    "wide_classifier": ZooEntry(CLASSIFICATION, "tiny_classifier at four times its width, 370 k parameters"),
    "tiny_residual": ZooEntry(CLASSIFICATION, "two residual blocks, as large as tiny_classifier, 26 k parameters"),
    "wide_residual": ZooEntry(CLASSIFICATION, "tiny_residual at four times its width, 410 k parameters"),
    "tiny_detector": ZooEntry(DETECTION, "tiny with a head that finds middles and sides, 24 k parameters"),
    "wide_detector": ZooEntry(DETECTION, "tiny_detector at four times its width, 370 k parameters"),
}


def build(name: str, classes: int, *, seed: int) -> nn.Module:
    """Build a network with random weights; the same seed gives the same weights and leaves other generators alone."""
    check(name)
    if task_of(name) is SEGMENTATION and classes > MAX_PIXEL_CLASSES:
        raise RequestError(
            f"'{name}' names pixels, and a label map has a byte for each: "
            f"at most {MAX_PIXEL_CLASSES} classes, given {classes}."
        )
    import torch

    from driftlab.platform.networks import architectures as networks

    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return networks.MAKERS[name](classes)


def check(name: str) -> None:
    """Refuse a name that the zoo does not have."""
    if name not in ZOO:
        raise unknown_name("network", name, ZOO)


def task_of(name: str) -> Task:
    """Return the task of a network."""
    check(name)
    return ZOO[name].task
