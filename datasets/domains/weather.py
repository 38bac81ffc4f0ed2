"""Weather: snow, frost, fog, brightness and spatter."""

from __future__ import annotations

import math

import cv2
import numpy as np

from driftlab.datasets.domains.canvas import Floats, enlarge, plasma, soften, streak
from driftlab.datasets.domains.constants import Row

_GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in the light
_WATER, _MUD = np.array([175, 238, 238]) / 255, np.array([63, 42, 20]) / 255
_ICE = np.array([0.86, 0.93, 1.0])
_NEEDLES, _CLUSTERS = 40, 6  # of ice: in each cluster, and clusters of a picture


def fog(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add a cloud and keep the brightest value."""
    weight, decay = row
    (height, width), most = picture.shape[:2], float(picture.max())
    found: Floats = (picture + weight * plasma(height, width, decay, rng)[..., None]) * most / (most + weight)
    return found


def brightness(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Raise the largest of each pixel's channels, and the others in proportion; black becomes grey."""
    value = picture.max(axis=2, keepdims=True)
    raised = np.minimum(value + row[0], 1)
    return np.asarray(np.where(value > 0, picture * raised / np.where(value > 0, value, 1), raised))


def snow(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Whiten the picture and let flakes fall across it, in both directions of one line."""
    mean, deviation, size, threshold, radius, streaks, weight = row
    flakes = enlarge(rng.normal(mean, deviation, picture.shape[:2]), max(size, 1.0))
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = streak(flakes, radius, streaks, rng.uniform(-135, -45))[..., None]
    grey = (picture @ _GREY)[..., None]
    whitened = weight * picture + (1 - weight) * np.maximum(picture, 1.5 * grey + 0.5)
    found: Floats = whitened + flakes + flakes[::-1, ::-1]
    return found


def frost(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add a crust of ice."""
    height, width = picture.shape[:2]
    return row[0] * picture + row[1] * _crust(height, width, rng)


def _crust(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Draw clusters of needles over a cloud; the published pictures of ice are not ours to copy."""
    side = max(height, width)
    starts = rng.uniform(0, side, (_CLUSTERS, 1, 2)) + rng.normal(0, 0.04 * side, (_CLUSTERS, _NEEDLES, 2))
    angles = rng.uniform(0, math.pi / 3, (_CLUSTERS, 1)) + math.pi / 3 * rng.integers(0, 6, (_CLUSTERS, _NEEDLES))
    lengths = rng.exponential(0.22 * side, (_CLUSTERS, _NEEDLES, 1))
    ends = starts + lengths * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    lines = np.rint(np.stack([starts, ends], axis=2).reshape(-1, 2, 2)).astype(np.int32)
    needles = np.zeros((height, width), np.uint8)
    cv2.polylines(needles, list(lines), False, 255, max(1, round(side / 160)), cv2.LINE_AA)
    thick = 0.35 + 0.45 * plasma(height, width, 1.6, rng)
    ice = np.clip(thick + 0.4 * soften(needles / 255, side / 300), 0, 1)
    found: Floats = ice[..., None] * _ICE
    return found


def spatter(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Splash water or mud on the lens."""
    mean, deviation, blur, threshold, strength, muddy = row
    liquid = soften(rng.normal(mean, deviation, picture.shape[:2]), blur)
    liquid[liquid < threshold] = 0
    if not muddy:
        return picture + strength * _drops(np.clip(liquid, 0, 1))[..., None] * _WATER
    mud = soften((liquid > threshold).astype(np.float64), strength)
    mud = np.where(mud < 0.8, 0, mud)[..., None]
    return picture * (1 - mud) + mud * _MUD


def _drops(liquid: Floats) -> Floats:
    """Light drops from one side: an embossed distance from their rims, at most 1."""
    levels = (liquid * 255).astype(np.uint8)
    apart = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    smooth = cv2.equalizeHist(cv2.blur(np.minimum(apart, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float64)
    lit = cv2.blur(cv2.filter2D(smooth, cv2.CV_8U, emboss), (3, 3)).astype(np.float64) * levels
    found: Floats = lit / max(float(lit.max()), 1e-9)
    return found
