"""The camera: exposure, white balance, focus, noise and compression."""

from __future__ import annotations

import math
from collections.abc import Mapping

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.look import Floats

Pixels = npt.NDArray[np.uint8]
_SPARE_PX = 61  # the field of grain is larger than a frame by this much, so that no two frames have the same
_GRAIN = 0.012 * 255
_BEST, _WORST = 90, 10  # quality of a JPEG


def draw_grain(seed: int, height: int, width: int) -> Floats:
    """Draw the field from which every frame takes its noise."""
    rng = np.random.Generator(np.random.SFC64([seed, 31]))
    grain: Floats = rng.standard_normal((height + _SPARE_PX, width + _SPARE_PX, 3), np.float32)
    grain *= np.float32(_GRAIN)
    return grain


def exposure_at(severity: float, time_s: float, phase: float) -> float:
    """Return the error of the camera's exposure."""
    swing = 0.6 * math.sin(2 * math.pi * time_s / 11 + 3 * phase) + 0.4 * math.sin(2 * math.pi * time_s / 3.7 + phase)
    return math.exp(0.8 * severity * swing)


def balance_at(severity: float, time_s: float, phase: float) -> Floats:
    """Return the error of each channel."""
    warm = 0.35 * severity * math.sin(2 * math.pi * time_s / 17 + phase)
    green = 0.15 * severity * math.sin(2 * math.pi * time_s / 29 + 2 * phase)
    return np.asarray(np.exp([warm, green, -warm]), np.float32)


def expose(picture: Floats, now: Mapping[str, float], grain: Floats, rng: np.random.Generator) -> Pixels:
    """Turn the light at the lens into the recorded frame: focus, noise, rounding, compression."""
    height, width = picture.shape[:2]
    sharp = cv2.convertScaleAbs(picture)  # rounds and saturates; no light is negative
    sigma = 0.6 + now["blur"] * width / 64
    size = 3 if not now["blur"] else 2 * math.ceil(2 * sigma) + 1
    seen = cv2.GaussianBlur(sharp, (size, size), sigma)
    row, column = (int(start) for start in rng.integers(0, _SPARE_PX, 2))
    noise = now["noise"] * (1 + 1.5 * now["night"])
    field = grain[row : row + height, column : column + width]
    frame = np.asarray(cv2.scaleAdd(field, noise, seen.astype(np.float32)))
    kept = np.asarray(cv2.convertScaleAbs(np.maximum(frame, 0)), np.uint8)
    return compress(kept, now["compression"]) if now["compression"] else kept


def compress(image: Pixels, severity: float) -> Pixels:
    """Encode and decode a frame."""
    quality = round(_BEST + severity * (_WORST - _BEST))
    _, encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded: Pixels = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
    return decoded[..., ::-1]
