"""Estimate the processor time of networks on one core of the reference host, from their counted cost.

The constants are a fit to training steps and inference of twelve networks, from 16 x 16 to 128 x 192 pixels, which it
meets within a factor of 1.6; a large network of depthwise convolutions is measured apart. `benchmarks/estimates.py`
compares whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftlab.platform.networks.training.artifacts import Recipe

# Seconds per layer with weights, per parameter, per byte of activations and per multiply-accumulate of an image.
STEP_S = (5.6e-4, 9.0e-9, 2.2e-9, 2.35e-11)  # of a training step: forward, backward and optimiser
FRAME_S = (3.9e-5, 4.7e-10, 1.33e-9, 1.35e-11)  # of inference on one image
COUNTED = {  # layers with weights, parameters, then bytes and multiply-accumulates per pixel; others require torch
    "tiny": (5, 24088, 128, 1644),
    "half": (5, 6288, 68, 462),
    "tiny_detector": (6, 37782, 222, 5052),
    "tiny_classifier": (5, 24088, 120, 1548),
    "wide_classifier": (5, 372808, 480, 23473),
    "deep_classifier": (14, 231616, 405, 4969),
    "tiny_staged": (20, 81424, 224, 2230),
    "tiny_residual": (7, 26006, 133, 1663),
    "wide_residual": (7, 405056, 532, 25467),
    "tiny_mobile": (23, 23054, 773, 1552),
    "tiny_mobile_segmenter": (23, 23054, 774, 1566),
    "tiny_mobile_detector": (23, 24374, 796, 1646),
    "deeplabv3_mobilenet_v2": (55, 2109960, 1802, 9925),
    "resnet18": (21, 11180616, 598, 36148),
    "resnet18_cbam": (61, 11317692, 543, 36380),
    "resnet56": (58, 855770, 6304, 122801),
    "resnext29_2x64d": (32, 9222564, 32000, 1378084),
    "staged": (20, 329076, 1792, 35254),
    "vgg16_cifar": (14, 14770212, 3240, 305906),
    "wrn_28_10": (29, 36536884, 19328, 5120494),
    "mobilenet_v2": (53, 2351972, 1557, 6094),
}
MEASURED = {"deeplabv3_mobilenet_v2": (0.59, 0.23)}  # training and inference over the times from its counts
LARGEST_PX = 128 * 128  # larger images are counted at this size: operations grow with the area


@dataclass(frozen=True)
class NetworkTime:
    """Processor time of a training step without images, of an image in it, and of inference."""

    step_s: float
    image_s: float
    frame_s: float

    def training_s(self, images: float, batch: int) -> float:
        """Return the time to train on a number of images in steps of a batch."""
        return images * (self.image_s + self.step_s / batch)


def reference(pixels: int) -> NetworkTime:
    """Return the times of the network `tiny` for images of a number of pixels."""
    return _times(COUNTED["tiny"], pixels)


def time_of(recipe: Recipe) -> NetworkTime:
    """Return the estimated times of a network for images of its size."""
    return _time_of(recipe.network, recipe.classes, recipe.height, recipe.width)


@cache
def _time_of(network: str, classes: int, height: int, width: int) -> NetworkTime:
    if network in COUNTED:
        return _times(COUNTED[network], height * width)
    from driftlab.platform.networks.architectures import build  # torch: seconds
    from driftlab.platform.networks.cost_counter import count_cost

    scale = min(1.0, (LARGEST_PX / (height * width)) ** 0.5)
    size = (max(32, round(height * scale)), max(32, round(width * scale))) if scale < 1 else (height, width)
    cost = count_cost(build(network, classes, seed=0, size=size), *size)
    layers = sum(1 for layer in cost.layers if layer.macs)
    pixels = size[0] * size[1]
    found = _times((layers, cost.parameters, cost.activation_bytes / pixels, cost.macs / pixels), height * width)
    training, inference = MEASURED.get(network, (1.0, 1.0))
    return NetworkTime(training * found.step_s, training * found.image_s, inference * found.frame_s)


def _times(counted: tuple[float, float, float, float], pixels: int) -> NetworkTime:
    """Return the times from the counts of a network and the pixels of an image."""
    own, image = counted[:2], tuple(pixels * each for each in counted[2:])
    return NetworkTime(_product(STEP_S[:2], own), _product(STEP_S[2:], image), _product(FRAME_S, (*own, *image)))


def _product(seconds: tuple[float, ...], counts: tuple[float, ...]) -> float:
    return sum(each * count for each, count in zip(seconds, counts, strict=True))
