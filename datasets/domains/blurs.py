"""Blurs: defocus, glass, motion, zoom and Gaussian."""

from __future__ import annotations

import cv2
import numpy as np

from driftlab.datasets.domains.canvas import Floats, enlarge, soften, streak
from driftlab.datasets.domains.constants import Row

_GRID_PX = 8  # least reach of the grid on which a disc is drawn


def gaussian_blur(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur by a Gaussian."""
    return soften(picture, row[0])


def defocus_blur(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur by a disc with a smoothed rim."""
    radius, rim = row
    reach, smoothing = (_GRID_PX, 3) if radius <= _GRID_PX else (int(radius), 5)
    places = np.arange(-reach, reach + 1)
    disc = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float64)
    kernel = cv2.GaussianBlur(disc / disc.sum(), (smoothing, smoothing), rim)
    return np.asarray(cv2.filter2D(picture, -1, kernel), np.float64)


def glass_blur(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Let each inner pixel take the value of a near one, between two blurs."""
    deviation, reach, times = row[0], max(1, round(row[1])), int(row[2])
    found, (height, width) = np.floor(soften(picture, deviation) * 255 + 1e-9) / 255, picture.shape[:2]
    inner = np.ix_(np.arange(reach + 1, height - reach + 1), np.arange(reach + 1, width - reach + 1))
    for _ in range(times):
        down, right = rng.integers(-reach, reach, (2, height - 2 * reach, width - 2 * reach))
        found[inner] = found[inner[0] + down, inner[1] + right]
    return soften(found, deviation)


def motion_blur(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur along a line of any direction within 45 degrees of the horizontal."""
    return streak(picture, row[0], row[1], rng.uniform(-45, 45))


def zoom_blur(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Average the picture with its enlargements."""
    factors = np.arange(1, row[0], row[1])
    return (picture + sum(enlarge(picture, factor) for factor in factors)) / (len(factors) + 1)
