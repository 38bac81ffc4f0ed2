"""Estimate the processor time of networks on one core of the reference host, from their counted cost.

The constants are a fit to training steps and inference of twelve networks, from 16 x 16 to 128 x 192 pixels, which it
meets within a factor of 1.6. `benchmarks/estimates.py` compares whole runs.
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
TINY_STEP_S, TINY_IMAGE_PX_S = 3.0e-3, 3.2e-7  # of the network `tiny`: of a step, and of a pixel in it
TINY_FRAME_S, TINY_FRAME_PX_S = 2.1e-4, 1.92e-7  # of inference: of an image, and of a pixel
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
    """Return the times of the network `tiny` for images of a number of pixels, without importing torch."""
    return NetworkTime(TINY_STEP_S, TINY_IMAGE_PX_S * pixels, TINY_FRAME_S + TINY_FRAME_PX_S * pixels)


def time_of(recipe: Recipe) -> NetworkTime:
    """Return the estimated times of a network for images of its size."""
    return _time_of(recipe.network, recipe.classes, recipe.height, recipe.width)


@cache
def _time_of(network: str, classes: int, height: int, width: int) -> NetworkTime:
    from driftlab.platform.networks.architectures import build  # torch: seconds
    from driftlab.platform.networks.cost_counter import count_cost

    scale = min(1.0, (LARGEST_PX / (height * width)) ** 0.5)
    size = (max(32, round(height * scale)), max(32, round(width * scale))) if scale < 1 else (height, width)
    cost = count_cost(build(network, classes, seed=0, size=size), *size)
    area = height * width / (size[0] * size[1])
    own = (sum(1 for layer in cost.layers if layer.macs), cost.parameters)
    image = (area * cost.activation_bytes, area * cost.macs)
    return NetworkTime(
        step_s=_product(STEP_S[:2], own),
        image_s=_product(STEP_S[2:], image),
        frame_s=_product(FRAME_S, (*own, *image)),
    )


def _product(seconds: tuple[float, ...], counts: tuple[float, ...]) -> float:
    return sum(each * count for each, count in zip(seconds, counts, strict=True))
