"""Render images of signs in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftlab.datasets.signs.alphabet import ANGLES, PATTERNS, Floats, SignClass, outlines

Pixels = npt.NDArray[np.uint8]
_PERIODS = (0.17, 0.23)  # of the patterns on sign and background, in units of the image's shorter side


@dataclass(frozen=True, eq=False)
class Views:
    """The contents of a batch of images; lengths in units of the shorter side, positions from the centre."""

    kinds: Sequence[SignClass]  # one per image
    centres: Floats  # [n, 2] x, y
    radii: Floats  # [n]
    turns: Floats  # [n] radians
    phases: Floats  # [n, 2] of the patterns, in periods
    colours: Floats  # [n, 2, 3] of sign and background, in 0..1
    contrast: Floats  # [n, 2] amplitude of the patterns around these colours
    gain: Floats  # [n] brightness
    blobs: Floats  # [n, m, 6] discs in front of the sign: x, y, radius, colour

    def __len__(self) -> int:
        return len(self.kinds)


def draw(views: Views, height: int, width: int, grain: Floats) -> Pixels:
    """Return images of background, sign and discs, multiplied by the brightness, with noise added."""
    side = min(height, width)
    y, x = np.meshgrid(_axis(height, side), _axis(width, side), indexing="ij")
    image = _surface(views, 1, np.broadcast_to(x, (len(views), *x.shape)), np.broadcast_to(y, (len(views), *y.shape)))
    u, v = _rotate(views, x, y)
    inside = _inside(views, u, v, side)[..., None]
    image += inside * (_surface(views, 0, u, v) - image)
    for blob in views.blobs.transpose(1, 0, 2):
        distance = np.hypot(x - blob[:, 0, None, None], y - blob[:, 1, None, None])
        cover = np.clip((blob[:, 2, None, None] - distance) * side + 0.5, 0, 1)[..., None]
        image += cover * (blob[:, None, None, 3:] - image)
    image = image * views.gain[:, None, None, None] + grain
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def _axis(pixels: int, side: int) -> Floats:
    axis: Floats = (np.arange(pixels, dtype=np.float32) + np.float32(0.5 - pixels / 2)) / np.float32(side)
    return axis


def _rotate(views: Views, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return coordinates relative to the sign's centre, along its axes."""
    right, down = x - views.centres[:, 0, None, None], y - views.centres[:, 1, None, None]
    cos, sin = np.cos(views.turns)[:, None, None], np.sin(views.turns)[:, None, None]
    return cos * right + sin * down, cos * down - sin * right


def _inside(views: Views, u: Floats, v: Floats, side: int) -> Floats:
    """Return the coverage of each pixel by the sign, with an anti-aliased edge of one pixel."""
    angle = np.rint(np.arctan2(v, u) * np.float32(ANGLES / (2 * np.pi))).astype(np.intp) % ANGLES
    shapes = np.array([kind.shape for kind in views.kinds], dtype=np.intp)[:, None, None]
    reach = outlines()[shapes, angle] * views.radii[:, None, None]
    cover: Floats = np.clip((reach - np.hypot(u, v)) * np.float32(side) + np.float32(0.5), 0, 1)
    return cover


def _surface(views: Views, layer: int, u: Floats, v: Floats) -> Floats:
    """Return the colour of every pixel on the surface of the sign (layer 0) or the background (1)."""
    letters = np.array([kind[1 + layer] for kind in views.kinds])
    swing = np.empty((len(views), *u.shape[1:]), dtype=np.float32)
    for letter in np.unique(letters):
        rows = np.flatnonzero(letters == letter)
        start = views.phases[rows, layer, None, None]
        period = np.float32(_PERIODS[layer])
        swing[rows] = tuple(PATTERNS.values())[letter](u[rows] / period + start, v[rows] / period + start)
    return views.colours[:, layer, None, None, :] + (views.contrast[:, layer, None, None] * swing)[..., None]
