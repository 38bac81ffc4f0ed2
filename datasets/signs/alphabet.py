"""The classes of signs: combinations of a shape, a pattern on it, and a pattern of the background."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError

Floats = npt.NDArray[np.float32]
ANGLES = 360  # directions for which the radius of a shape is stored


class SignClass(NamedTuple):
    """A class: its indices in SHAPES, PATTERNS (sign) and PATTERNS (background)."""

    shape: int
    sign: int  # pattern on the sign
    ground: int


def _ring(corners: int, turn: float, inner: float = 1.0) -> tuple[tuple[float, float], ...]:
    """Return corners at equal angles on a circle, every other one at the radius `inner`."""
    angles = [turn + 2 * math.pi * k / corners for k in range(corners)]
    radii = [1.0 if k % 2 == 0 else inner for k in range(corners)]
    return tuple(
        (radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in zip(radii, angles, strict=True)
    )


_UP = -math.pi / 2  # the y axis points down
# Corners of each shape; every ray from the centre meets the outline once.
SHAPES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "disc": _ring(60, 0.0),
    "triangle": _ring(3, _UP),
    "square": _ring(4, math.pi / 4),
    "diamond": _ring(4, _UP),
    "star": _ring(10, _UP, 0.45),
    "cross": (
        *((0.35, -1.0), (0.35, -0.35), (1.0, -0.35)),
        *((1.0, 0.35), (0.35, 0.35), (0.35, 1.0)),
        *((-0.35, 1.0), (-0.35, 0.35), (-1.0, 0.35)),
        *((-1.0, -0.35), (-0.35, -0.35), (-0.35, -1.0)),
    ),
    "wedge": _ring(3, -_UP),
    "house": ((0.0, -1.0), (0.8, -0.1), (0.8, 0.9), (-0.8, 0.9), (-0.8, -0.1)),
    "arrow": ((0.0, -1.0), (0.9, 0.1), (0.4, 0.1), (0.4, 0.9), (-0.4, 0.9), (-0.4, 0.1), (-0.9, 0.1)),
    "hexagon": _ring(6, _UP),
}
# Brightness in -1..1 at a position in periods.
PATTERNS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "bars": lambda u, v: _wave(u),
    "rows": lambda u, v: _wave(v),
    "checks": lambda u, v: _wave(u) * _wave(v),
    "plain": lambda u, v: np.zeros_like(u),
    "slants": lambda u, v: _wave(0.7 * (u + v)),
    "dots": lambda u, v: np.clip(_wave(u) + _wave(v) - 1, -1, 1),
}
MAX_CLASSES = len(SHAPES) * len(PATTERNS) ** 2


def _wave(x: Floats) -> Floats:
    """Return a clipped sine wave of period 1."""
    swing: Floats = np.clip(2.5 * np.sin(np.float32(2 * np.pi) * x), -1, 1)
    return swing


def kinds_of(classes: int) -> tuple[SignClass, ...]:
    """Return the classes over as few shapes and patterns as possible, so that all three are needed."""
    if not 2 <= classes <= MAX_CLASSES:
        raise RequestError(f"Signs come in 2 to {MAX_CLASSES} classes, given {classes}.")
    limits, letters = (len(SHAPES), len(PATTERNS), len(PATTERNS)), [1, 1, 1]
    while math.prod(letters) < classes:
        growing = min((k for k in range(3) if letters[k] < limits[k]), key=lambda k: letters[k])
        letters[growing] += 1
    shapes, signs, grounds = letters
    every = (SignClass(s, f, b) for b in range(grounds) for f in range(signs) for s in range(shapes))
    return tuple(kind for kind, _ in zip(every, range(classes), strict=False))


def names_of(classes: int) -> tuple[str, ...]:
    """Return the name of each class from its shape and patterns."""
    shapes, patterns = tuple(SHAPES), tuple(PATTERNS)
    return tuple(f"{patterns[sign]} {shapes[shape]} on {patterns[ground]}" for shape, sign, ground in kinds_of(classes))


@lru_cache(maxsize=1)
def outlines() -> Floats:
    """Return the radius of each shape in every direction: [shapes, ANGLES], direction 0 is to the right."""
    angles = 2 * np.pi * np.arange(ANGLES) / ANGLES
    return np.stack([_reach(np.array(corners), angles) for corners in SHAPES.values()]).astype(np.float32)


def _reach(corners: npt.NDArray[np.float64], angles: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the length of rays from the centre to the edge that each meets."""
    start, edge = corners, np.roll(corners, -1, axis=0) - corners
    ray = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None]  # [angles, 1, 2]
    across = ray[..., 0] * edge[:, 1] - ray[..., 1] * edge[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        length = (start[:, 0] * edge[:, 1] - start[:, 1] * edge[:, 0]) / across
        along = (start[:, 0] * ray[..., 1] - start[:, 1] * ray[..., 0]) / across
    met = (along >= -1e-9) & (along <= 1 + 1e-9) & (length > 0)
    reach: npt.NDArray[np.float64] = np.where(met, length, -np.inf).max(axis=1)
    return reach
