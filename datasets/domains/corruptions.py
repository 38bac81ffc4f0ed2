"""The corruptions of Hendrycks and Dietterich (2019): noise, blur, weather and digital."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from driftlab.datasets.domains.canvas import Floats, enlarge, plasma, soften, streak
from driftlab.datasets.domains.constants import Row

# Of an RGB picture of values from 0 to 1, constants, and a generator that each frame has of its own.
Corruption = Callable[[Floats, Row, np.random.Generator], Floats]
_GRID_PX = 8  # least reach of the grid on which a disc is drawn
_GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in the light
_WATER, _MUD = np.array([175, 238, 238]) / 255, np.array([63, 42, 20]) / 255
_ICE = np.array([0.86, 0.93, 1.0])
_NEEDLES, _CLUSTERS = 40, 6  # of ice: in each cluster, and clusters of a picture

# Noise ----------------------------------------------------------------------------------------------------------------


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


# Blur -----------------------------------------------------------------------------------------------------------------


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


# Weather --------------------------------------------------------------------------------------------------------------


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


# Digital --------------------------------------------------------------------------------------------------------------


def contrast(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Move values towards the mean of their channel."""
    mean = picture.mean(axis=(0, 1))
    return np.asarray(mean + row[0] * (picture - mean))


def elastic_transform(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Move three corners of a triangle, and then each pixel by a smooth random way."""
    reach, smoothness, jitter = row
    height, width = picture.shape[:2]
    centre, side = np.array([height, width]) // 2, min(height, width) // 3
    triangle = (centre + side * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    moved = triangle + rng.uniform(-jitter, jitter, triangle.shape).astype(np.float32)
    affine = cv2.getAffineTransform(triangle, moved)
    bent = cv2.warpAffine(picture, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    right, down = (reach * _smooth(rng.uniform(-1, 1, (height, width)), smoothness) for _ in range(2))
    places = np.mgrid[:height, :width] + np.stack([down, right])
    channels = [ndimage.map_coordinates(bent[..., k], places, order=1, mode="reflect") for k in range(3)]
    return np.stack(channels, axis=-1)


def _smooth(plane: Floats, deviation: float) -> Floats:
    return np.asarray(ndimage.gaussian_filter(plane, deviation, mode="reflect", truncate=3.0), np.float64)


def pixelate(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Shrink the picture, and enlarge it again, by boxes."""
    height, width = picture.shape[:2]
    few = max(1, int(width * row[0])), max(1, int(height * row[0]))
    return _of(_image(picture).resize(few, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX))


def jpeg_compression(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Pack the picture by JPEG."""
    packed = io.BytesIO()
    _image(picture).save(packed, "JPEG", quality=int(row[0]))
    return _of(Image.open(packed))


def saturate(picture: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Change the saturation of the hue-saturation-value space, where grey has the hue of red."""
    factor, addend = row
    value = picture.max(axis=2, keepdims=True)
    spread = value - picture.min(axis=2, keepdims=True)
    before = spread / np.where(value > 0, value, 1)
    after = np.clip(before * factor + addend, 0, 1)
    away = np.where(spread > 0, (value - picture) / np.where(spread > 0, spread, 1), np.array([0.0, 1.0, 1.0]))
    found: Floats = value * (1 - after * away)
    return found


def _image(picture: Floats) -> Image.Image:
    pixels: npt.NDArray[np.uint8] = np.rint(picture * 255).astype(np.uint8)
    return Image.fromarray(pixels)


def _of(image: Image.Image) -> Floats:
    return np.asarray(image, np.float64) / 255


# Table ----------------------------------------------------------------------------------------------------------------

CORRUPTIONS: Mapping[str, Corruption] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            gaussian_noise,
            shot_noise,
            impulse_noise,
            speckle_noise,
            defocus_blur,
            glass_blur,
            motion_blur,
            zoom_blur,
            gaussian_blur,
            snow,
            frost,
            fog,
            brightness,
            spatter,
            contrast,
            elastic_transform,
            pixelate,
            jpeg_compression,
            saturate,
        )
    }
)
