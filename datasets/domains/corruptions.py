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

from driftlab.datasets.domains.canvas import Floats, enlarge, plasma, soften, streak
from driftlab.datasets.domains.constants import Row

# Arguments: an RGB image with values from 0 to 1, constants, and the random generator of the frame.
Corruption = Callable[[Floats, Row, np.random.Generator], Floats]
_GRID_PX = 8  # minimum radius of the kernel of a disc
_GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in the luminance
_WATER, _MUD = np.array([175, 238, 238]) / 255, np.array([63, 42, 20]) / 255
_ICE = np.array([0.86, 0.93, 1.0])
_NEEDLES, _CLUSTERS = 40, 6  # needles of ice per cluster, clusters per image

# Noise ----------------------------------------------------------------------------------------------------------------


def gaussian_noise(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add Gaussian noise."""
    return image + rng.normal(0.0, row[0], image.shape)


def shot_noise(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Replace each value by a photon count with Poisson noise."""
    return rng.poisson(image * row[0]) / row[0]


def impulse_noise(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Set a share of the values to 0 or 1 with equal probability."""
    replaced = rng.random(image.shape) < row[0]
    return np.where(replaced, rng.random(image.shape) < 0.5, image)


def speckle_noise(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add Gaussian noise proportional to the value."""
    return image * (1 + rng.normal(0.0, row[0], image.shape))


# Blur -----------------------------------------------------------------------------------------------------------------


def gaussian_blur(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur with a Gaussian."""
    return soften(image, row[0])


def defocus_blur(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur with a disc with a smooth edge."""
    radius, rim = row
    reach, smoothing = (_GRID_PX, 3) if radius <= _GRID_PX else (int(radius), 5)
    places = np.arange(-reach, reach + 1)
    disc = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float64)
    kernel = cv2.GaussianBlur(disc / disc.sum(), (smoothing, smoothing), rim)
    return np.asarray(cv2.filter2D(image, -1, kernel), np.float64)


def glass_blur(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Exchange inner pixels with near ones, between two Gaussian blurs."""
    deviation, reach, times = row[0], max(1, round(row[1])), int(row[2])
    blurred, (height, width) = np.floor(soften(image, deviation) * 255 + 1e-9) / 255, image.shape[:2]
    inner = np.ix_(np.arange(reach + 1, height - reach + 1), np.arange(reach + 1, width - reach + 1))
    for _ in range(times):
        down, right = rng.integers(-reach, reach, (2, height - 2 * reach, width - 2 * reach))
        blurred[inner] = blurred[inner[0] + down, inner[1] + right]
    return soften(blurred, deviation)


def motion_blur(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Blur along a line at a random angle within 45 degrees of the horizontal."""
    return streak(image, row[0], row[1], rng.uniform(-45, 45))


def zoom_blur(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Average the image with enlarged copies."""
    factors = np.arange(1, row[0], row[1])
    return (image + sum(enlarge(image, factor) for factor in factors)) / (len(factors) + 1)


# Weather --------------------------------------------------------------------------------------------------------------


def fog(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add a fractal cloud, scaled so that the maximum stays the same."""
    weight, decay = row
    (height, width), brightest = image.shape[:2], float(image.max())
    cloud = weight * plasma(height, width, decay, rng)[..., None]
    foggy: Floats = (image + cloud) * brightest / (brightest + weight)
    return foggy


def brightness(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add to the value of hue-saturation-value space; black becomes grey."""
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + row[0], 1)
    return np.asarray(np.where(value > 0, image * raised / np.where(value > 0, value, 1), raised))


def snow(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Whiten the image and add streaks of flakes, also rotated by 180 degrees."""
    mean, deviation, size, threshold, radius, streaks, weight = row
    flakes = enlarge(rng.normal(mean, deviation, image.shape[:2]), max(size, 1.0))
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = streak(flakes, radius, streaks, rng.uniform(-135, -45))[..., None]
    grey = (image @ _GREY)[..., None]
    whitened = weight * image + (1 - weight) * np.maximum(image, 1.5 * grey + 0.5)
    snowy: Floats = whitened + flakes + flakes[::-1, ::-1]
    return snowy


def frost(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add a layer of ice."""
    height, width = image.shape[:2]
    return row[0] * image + row[1] * _crust(height, width, rng)


def _crust(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Return clusters of ice needles over a cloud; it replaces the photographs of the paper."""
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
    coloured: Floats = ice[..., None] * _ICE
    return coloured


def spatter(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Add drops of water or mud."""
    mean, deviation, blur, threshold, strength, muddy = row
    liquid = soften(rng.normal(mean, deviation, image.shape[:2]), blur)
    liquid[liquid < threshold] = 0
    if not muddy:
        return image + strength * _drops(np.clip(liquid, 0, 1))[..., None] * _WATER
    mud = soften((liquid > threshold).astype(np.float64), strength)
    mud = np.where(mud < 0.8, 0, mud)[..., None]
    return image * (1 - mud) + mud * _MUD


def _drops(liquid: Floats) -> Floats:
    """Return the brightness of drops lit from one side, at most 1: the embossed distance from their edges."""
    levels = (liquid * 255).astype(np.uint8)
    apart = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    smooth = cv2.equalizeHist(cv2.blur(np.minimum(apart, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float64)
    lit = cv2.blur(cv2.filter2D(smooth, cv2.CV_8U, emboss), (3, 3)).astype(np.float64) * levels
    scaled: Floats = lit / max(float(lit.max()), 1e-9)
    return scaled


# Digital --------------------------------------------------------------------------------------------------------------


def contrast(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Move values towards the mean of the channel."""
    mean = image.mean(axis=(0, 1))
    return np.asarray(mean + row[0] * (image - mean))


def elastic_transform(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Apply a random affine map, then move each pixel by a smooth random displacement."""
    from scipy import ndimage

    reach, smoothness, jitter = row
    height, width = image.shape[:2]
    centre, side = np.array([height, width]) // 2, min(height, width) // 3
    triangle = (centre + side * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    moved = triangle + rng.uniform(-jitter, jitter, triangle.shape).astype(np.float32)
    affine = cv2.getAffineTransform(triangle, moved)
    bent = cv2.warpAffine(image, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    right, down = (reach * _smooth(rng.uniform(-1, 1, (height, width)), smoothness) for _ in range(2))
    places = np.mgrid[:height, :width] + np.stack([down, right])
    channels = [ndimage.map_coordinates(bent[..., k], places, order=1, mode="reflect") for k in range(3)]
    return np.stack(channels, axis=-1)


def _smooth(plane: Floats, deviation: float) -> Floats:
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(plane, deviation, mode="reflect", truncate=3.0), np.float64)


def pixelate(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Reduce the resolution with a box filter."""
    height, width = image.shape[:2]
    small = max(1, int(width * row[0])), max(1, int(height * row[0]))
    reduced = _to_image(image).resize(small, Image.Resampling.BOX)
    return _to_floats(reduced.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Compress the image with JPEG."""
    compressed = io.BytesIO()
    _to_image(image).save(compressed, "JPEG", quality=int(row[0]))
    return _to_floats(Image.open(compressed))


def saturate(image: Floats, row: Row, rng: np.random.Generator) -> Floats:
    """Scale and shift the saturation of hue-saturation-value space, in which grey has the hue of red."""
    factor, addend = row
    value = image.max(axis=2, keepdims=True)
    spread = value - image.min(axis=2, keepdims=True)
    before = spread / np.where(value > 0, value, 1)
    after = np.clip(before * factor + addend, 0, 1)
    away = np.where(spread > 0, (value - image) / np.where(spread > 0, spread, 1), np.array([0.0, 1.0, 1.0]))
    saturated: Floats = value * (1 - after * away)
    return saturated


def _to_image(image: Floats) -> Image.Image:
    pixels: npt.NDArray[np.uint8] = np.rint(image * 255).astype(np.uint8)
    return Image.fromarray(pixels)


def _to_floats(image: Image.Image) -> Floats:
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
