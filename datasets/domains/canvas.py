"""Drawing that several shifts share: blurs, enlargements, streaks and fractal clouds."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Floats = npt.NDArray[np.float64]


def soften(picture: Floats, deviation: float) -> Floats:
    """Blur a picture or a plane by a Gaussian; what is beyond the border is like the border."""
    if deviation <= 0:
        return picture
    sides = (deviation, deviation, 0)[: picture.ndim]
    found: Floats = ndimage.gaussian_filter(picture, sides, mode="nearest", truncate=4.0)
    return found


def enlarge(picture: Floats, factor: float) -> Floats:
    """Enlarge the centre of a picture to the picture's size, with linear interpolation."""
    for axis in (0, 1):
        picture = np.moveaxis(_stretch(np.moveaxis(picture, axis, 0), factor), 0, axis)
    return picture


def _stretch(picture: Floats, factor: float) -> Floats:
    """Enlarge the centre along the first axis; the cut's first and last lines stay its first and last."""
    side = len(picture)
    cut = math.ceil(side / factor)
    long = max(round(cut * factor), 2)
    shown = np.arange(side) + (long - side) // 2
    places = (side - cut) // 2 + shown * ((cut - 1) / (long - 1))
    below = np.clip(np.floor(places).astype(int), 0, side - 1)
    above, weight = np.minimum(below + 1, side - 1), (places - below).reshape(-1, *[1] * (picture.ndim - 1))
    found: Floats = picture[below] * (1 - weight) + picture[above] * weight
    return found


def streak(picture: Floats, radius: float, deviation: float, degrees: float) -> Floats:
    """Blur along a line that begins at each pixel, with half a Gaussian; the border goes on beyond itself."""
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2 * deviation**2))
    weights /= weights.sum()
    angle = math.radians(degrees)
    right, down = (np.ceil(taps * part - 0.5).astype(int) for part in (math.cos(angle), math.sin(angle)))
    height, width = picture.shape[:2]
    found = np.zeros_like(picture)
    for weight, dx, dy in zip(weights, right, down, strict=True):
        rows, columns = np.clip(np.arange(height) + dy, 0, height - 1), np.clip(np.arange(width) + dx, 0, width - 1)
        found += weight * picture[rows[:, None], columns]
    return found


def plasma(height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Draw a cloud from 0 to 1 by the diamond-square method, whose steps shrink by the square of a decay."""
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    cloud, step, reach = np.zeros((side, side)), side, 1.0
    while step > 1:
        half = step // 2
        corners = cloud[::step, ::step]
        wide = corners + _rolled(corners, -1, axis=1)
        centres = (wide + _rolled(wide, -1, axis=0)) / 4 + reach * rng.uniform(-1, 1, corners.shape)
        edges = (wide + centres + _rolled(centres, 1, axis=0)) / 4 + reach * rng.uniform(-1, 1, corners.shape)
        high = corners + _rolled(corners, -1, axis=0)
        sides = (high + centres + _rolled(centres, 1, axis=1)) / 4 + reach * rng.uniform(-1, 1, corners.shape)
        cloud[half::step, half::step], cloud[::step, half::step], cloud[half::step, ::step] = centres, edges, sides
        step, reach = half, reach / decay**2
    cloud -= cloud.min()
    found: Floats = (cloud / cloud.max())[:height, :width]
    return found


def _rolled(values: Floats, by: Literal[-1, 1], axis: Literal[0, 1]) -> Floats:
    """Roll an array of two axes by one place; NumPy's own function takes several times as long on small ones."""
    turned = values if axis == 0 else values.T
    parts = (turned[1:], turned[:1]) if by < 0 else (turned[-1:], turned[:-1])
    found: Floats = np.concatenate(parts)
    return found if axis == 0 else found.T
