"""Image operations shared by several corruptions: blur, zoom, streaks and fractal clouds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def soften(image: Floats, deviation: float) -> Floats:
    """Blur an image or a plane with a Gaussian; border values are repeated outside."""
    if deviation <= 0:
        return image
    from scipy import ndimage  # here: its import takes longer than to open a stream

    sides = (deviation, deviation, 0)[: image.ndim]
    blurred: Floats = ndimage.gaussian_filter(image, sides, mode="nearest", truncate=4.0)
    return blurred


def enlarge(image: Floats, factor: float) -> Floats:
    """Enlarge the centre of an image to the size of the image, with linear interpolation."""
    for axis in (0, 1):
        image = np.moveaxis(_stretch(np.moveaxis(image, axis, 0), factor), 0, axis)
    return image


def _stretch(image: Floats, factor: float) -> Floats:
    """Enlarge the centre along the first axis; the first and the last line of the crop are preserved."""
    side = len(image)
    crop = math.ceil(side / factor)
    long = max(round(crop * factor), 2)
    shown = np.arange(side) + (long - side) // 2
    places = (side - crop) // 2 + shown * ((crop - 1) / (long - 1))
    below = np.clip(np.floor(places).astype(int), 0, side - 1)
    above, weight = np.minimum(below + 1, side - 1), (places - below).reshape(-1, *[1] * (image.ndim - 1))
    enlarged: Floats = image[below] * (1 - weight) + image[above] * weight
    return enlarged


def streak(image: Floats, radius: float, deviation: float, degrees: float) -> Floats:
    """Blur along a line that starts at each pixel, with half a Gaussian; the border is repeated outside."""
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2 * deviation**2))
    weights /= weights.sum()
    angle = math.radians(degrees)
    right, down = (np.ceil(taps * part - 0.5).astype(int) for part in (math.cos(angle), math.sin(angle)))
    height, width = image.shape[:2]
    blurred = np.zeros_like(image)
    for weight, dx, dy in zip(weights, right, down, strict=True):
        rows, columns = np.clip(np.arange(height) + dy, 0, height - 1), np.clip(np.arange(width) + dx, 0, width - 1)
        blurred += weight * image[rows[:, None], columns]
    return blurred


def plasma(height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Return a cloud from 0 to 1 by the diamond-square method; each step shrinks by the decay squared."""
    cloud: Floats = plasmas(1, height, width, decay, rng)[0]
    return cloud


def plasmas(planes: int, height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Return several clouds, equal to those of successive calls of `plasma`."""
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    drawn, used = rng.uniform(-1, 1, (planes, side * side - 1)), 0
    clouds, step, reach = np.zeros((planes, side, side)), side, 1.0
    while step > 1:
        half, lines = step // 2, side // step
        ahead, behind = np.arange(1, lines + 1) % lines, np.arange(-1, lines - 1) % lines
        moves = reach * drawn[:, used : used + 3 * lines * lines].reshape(planes, 3, lines, lines)
        corners = clouds[:, ::step, ::step]
        wide = corners + corners.take(ahead, axis=2)
        centres = (wide + wide.take(ahead, axis=1)) / 4 + moves[:, 0]
        edges = (wide + centres + centres.take(behind, axis=1)) / 4 + moves[:, 1]
        high = corners + corners.take(ahead, axis=1)
        sides = (high + centres + centres.take(behind, axis=2)) / 4 + moves[:, 2]
        clouds[:, half::step, half::step], clouds[:, ::step, half::step] = centres, edges
        clouds[:, half::step, ::step] = sides
        step, reach, used = half, reach / decay**2, used + 3 * lines * lines
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    scaled: Floats = (clouds / clouds.max(axis=(1, 2), keepdims=True))[:, :height, :width]
    return scaled
