"""Drawing that several shifts share: blurs, enlargements, streaks and fractal clouds."""

from __future__ import annotations

import math

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
    found: Floats = plasmas(1, height, width, decay, rng)[0]
    return found


def plasmas(planes: int, height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Draw clouds one after the other, each as `plasma` would."""
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
    found: Floats = (clouds / clouds.max(axis=(1, 2), keepdims=True))[:, :height, :width]
    return found
