"""Draw random contents for images of signs; the difficulty scales variation, discs and noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from driftlab.datasets.signs.alphabet import Floats, SignClass
from driftlab.datasets.signs.draw import Views

BLOBS = 3
GRAIN = 0.08  # standard deviation of the noise at difficulty 1


def draw_views(rng: np.random.Generator, kinds: Sequence[SignClass], difficulty: float) -> Views:
    """Return a sign in random colours for each image; only shape and patterns depend on the class."""
    n = len(kinds)
    sides = rng.choice([-1.0, 1.0], (n, 2))
    return Views(
        kinds=kinds,
        centres=_single(rng.uniform(-0.1, 0.1, (n, 2)) * difficulty),
        radii=_single(rng.uniform(0.24, 0.44, n)),
        turns=_single(rng.normal(0, 0.1, n) * difficulty),
        phases=_single(rng.uniform(0, 1, (n, 2))),
        colours=_single(rng.uniform(0.2, 0.8, (n, 2, 3))),
        contrast=_single(rng.uniform(0.1, 0.3, (n, 2)) * sides),
        gain=_single(rng.uniform(0.7, 1.2, n)),
        blobs=draw_blobs(rng, n, difficulty),
    )


def draw_blobs(rng: np.random.Generator, n: int, difficulty: float) -> Floats:
    """Return discs in front of each sign."""
    places, sizes = rng.uniform(-0.5, 0.5, (n, BLOBS, 2)), rng.uniform(0, 0.1, (n, BLOBS, 1)) * difficulty
    return _single(np.concatenate([places, sizes, rng.uniform(0.1, 0.9, (n, BLOBS, 3))], axis=2))


def draw_grain(rng: np.random.Generator, shape: tuple[int, ...], difficulty: float) -> Floats:
    """Return Gaussian sensor noise."""
    grain: Floats = rng.standard_normal(shape, dtype=np.float32) * np.float32(GRAIN * difficulty)
    return grain


def _single(values: npt.NDArray[np.float64]) -> Floats:
    return values.astype(np.float32)
