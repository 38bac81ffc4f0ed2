"""Digital shifts: contrast, elastic transforms, pixels, JPEG and colours."""

from __future__ import annotations

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from driftlab.datasets.domains.canvas import Floats
from driftlab.datasets.domains.constants import Row


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
