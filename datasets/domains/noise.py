"""Noise: Gaussian, shot, impulse and speckle."""

from __future__ import annotations

import numpy as np

from driftlab.datasets.domains.canvas import Floats
from driftlab.datasets.domains.constants import Row


def gaussian_noise(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add noise of one standard deviation."""
    return picture + rng.normal(0.0, row[0], picture.shape)


def shot_noise(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Count photons."""
    return rng.poisson(picture * row[0]) / row[0]


def impulse_noise(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Set a share of the values to black or white, equally often."""
    struck = rng.random(picture.shape) < row[0]
    return np.where(struck, rng.random(picture.shape) < 0.5, picture)


def speckle_noise(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add noise in proportion to the value."""
    return picture * (1 + rng.normal(0.0, row[0], picture.shape))
