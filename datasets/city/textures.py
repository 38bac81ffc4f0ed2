"""Seamless grey textures with marks: where a wall has glass, its frame or a lit window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.look import TILE, Floats
from driftlab.errors import DataError, needed_import

Marks = npt.NDArray[np.uint8]


class Swatch(IntEnum):
    """A texture; walls lie side by side, so that a wall's kind is a number to add."""

    PLAIN = 0
    ASPHALT = 1
    SLABS = 2
    GRAVEL = 3
    GRASS = 4
    LEAVES = 5
    CLOUDS = 6
    CLOTH = 7
    SHOP = 8
    WALL = 9  # 4
    END = 13


WALLS = 4
NO_MARK, GLASS, FRAME, LIT = range(4)  # LIT is glass by day


@dataclass(frozen=True, eq=False)
class Textures:
    """The tiles of a scene, flat: tile k begins at k * TILE * TILE."""

    tones: Floats  # how much lighter or darker than the surface's colour, as a share of it
    marks: Marks


def draw_textures(rng: np.random.Generator, photos: float = 0.0) -> Textures:
    """Draw the tiles of one scene; photographs replace a share of the drawn grain."""
    tones = np.zeros((Swatch.END, TILE, TILE), np.float32)
    marks = np.zeros((Swatch.END, TILE, TILE), np.uint8)
    tones[Swatch.ASPHALT] = 0.05 * _grain(rng, 64) + 0.04 * _grain(rng, 8)
    tones[Swatch.SLABS] = _draw_slabs(rng)
    tones[Swatch.GRAVEL] = 0.10 * _grain(rng, 64) + 0.05 * _grain(rng, 8)
    tones[Swatch.GRASS] = 0.10 * _grain(rng, 64) + 0.08 * _grain(rng, 16)
    tones[Swatch.LEAVES] = 0.16 * _grain(rng, 32) + 0.14 * _grain(rng, 16)
    tones[Swatch.CLOUDS] = rng.uniform(0.02, 0.10) * _grain(rng, 6)
    tones[Swatch.CLOTH] = 0.07 * _grain(rng, 32)
    tones[Swatch.SHOP], marks[Swatch.SHOP] = _draw_shop(rng)
    for wall in range(WALLS):
        tones[Swatch.WALL + wall], marks[Swatch.WALL + wall] = _draw_wall(rng)
    if photos:
        _lay_photographs(tones, photos, rng)
    return Textures(tones.ravel(), marks.ravel())


def _grain(rng: np.random.Generator, cells: int) -> Floats:
    """Draw smooth noise of unit size that repeats, with this many bumps along the side."""
    noise = rng.standard_normal((cells, cells), np.float32)
    if cells == TILE:
        return noise
    ring = np.pad(noise, 2, mode="wrap")
    side = TILE * (cells + 4) // cells
    edge = (side - TILE) // 2
    return np.asarray(cv2.resize(ring, (side, side), interpolation=cv2.INTER_CUBIC)[edge:, edge:][:TILE, :TILE])


def _draw_slabs(rng: np.random.Generator) -> Floats:
    """Draw paving stones with dark joints."""
    side = int(rng.choice([4, 8, 16]))
    stones = np.kron(rng.normal(0, 0.05, (TILE // side, TILE // side)), np.ones((side, side)))
    stones[::side] -= 0.10
    stones[:, ::side] -= 0.10
    return np.asarray(stones + 0.03 * _grain(rng, 64), np.float32)


def _draw_wall(rng: np.random.Generator) -> tuple[Floats, Marks]:
    """Draw a front with rows of windows; row 0 is the floor's ceiling, as rows count downwards."""
    tone = 0.03 * _grain(rng, 64) + 0.03 * _grain(rng, 8)
    tone[:: int(rng.choice([2, 4]))] -= np.float32(rng.choice([0.0, 0.04, 0.08]))
    marks = np.zeros((TILE, TILE), np.uint8)
    floor = int(rng.choice([21, 32]))
    apart = int(rng.choice([16, 16, 21, 32]))
    wide, high = round(apart * rng.uniform(0.4, 0.62)), round(floor * rng.uniform(0.45, 0.62))
    framed = rng.uniform() < 0.6
    for top in range(5, TILE - high, floor):
        if rng.uniform() < 0.5:
            tone[top + high + 3 : top + high + 4] -= 0.12  # the edge of a floor
        for left in range((apart - wide) // 2, TILE - wide + 1, apart):
            if framed:
                marks[top - 1 : top + high + 1, left - 1 : left + wide + 1] = FRAME
            marks[top : top + high, left : left + wide] = LIT if rng.uniform() < 0.45 else GLASS
            tone[top : top + high, left : left + wide] = rng.uniform(-0.25, 0.35)
            tone[top : top + high // 2, left : left + wide] += 0.25  # the mirrored sky
    return tone, marks


def _draw_shop(rng: np.random.Generator) -> tuple[Floats, Marks]:
    """Draw a ground floor: wide panes and doors under a plain band."""
    tone, marks = 0.04 * _grain(rng, 64), np.zeros((TILE, TILE), np.uint8)
    left = 2
    while left < TILE - 8:
        wide = min(int(rng.choice([8, 14, 20])), TILE - 2 - left)
        marks[TILE - 18 : TILE - (1 if wide == 8 else 4), left : left + wide] = LIT if rng.uniform() < 0.7 else GLASS
        tone[TILE - 18 : TILE - 1, left : left + wide] = rng.uniform(-0.2, 0.5)
        left += wide + 3
    return tone, marks


# Photographs of scikit-image, published under CC0: the textures read from each, and their contrast.
_PHOTOGRAPHS = {
    "brick": ((Swatch.WALL, Swatch.WALL + 1), 0.10),
    "grass": ((Swatch.GRASS, Swatch.LEAVES), 0.22),
    "gravel": ((Swatch.ASPHALT, Swatch.GRAVEL, Swatch.SLABS), 0.10),
}


def _lay_photographs(tones: Floats, share: float, rng: np.random.Generator) -> None:
    """Blend the grain of photographs into the tiles."""
    for name, (tiles, contrast) in _PHOTOGRAPHS.items():
        grain = photograph(name)
        for tile in tiles:
            row, column = rng.integers(0, TILE, 2)
            turned = np.roll(grain, (int(row), int(column)), axis=(0, 1))
            tones[tile] += np.float32(share) * (np.float32(contrast) * turned - np.float32(0.5) * tones[tile])


@cache
def photograph(name: str) -> Floats:
    """Read a photograph as repeating grain of unit size; each tile adjoins its mirror images."""
    fix = "Install it with: make setup, or pip install 'driftlab[data]'; or set photos to 0."
    with needed_import("photos takes textures from scikit-image", fix, DataError):
        from skimage import data
    read: Callable[[], npt.NDArray[np.uint8]] = getattr(data, name)
    picture = read()[:256, :256].astype(np.float32)
    piece = cv2.resize(picture, (TILE // 2, TILE // 2), interpolation=cv2.INTER_AREA)
    whole = np.block([[piece, piece[:, ::-1]], [piece[::-1], piece[::-1, ::-1]]])
    return np.asarray((whole - whole.mean()) / whole.std(), np.float32)
