"""What each shift does to a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.names import ANGLES
from driftlab.datasets.domains.orders import Domain

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]
# Of an RGB picture of values from 0 to 1, a severity, and a generator that each frame has of its own.
Draw = Callable[[Floats, int, np.random.Generator], Floats]


def gaussian_noise(picture: Floats, severity: int, rng: np.random.Generator) -> Floats:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return picture + np.float32(deviation) * rng.standard_normal(picture.shape, dtype=np.float32)


def rotation(picture: Floats, severity: int, rng: np.random.Generator) -> Floats:
    height, width = picture.shape[:2]
    turned: Floats = cv2.warpAffine(picture, turn(height, width, severity), (width, height), flags=cv2.INTER_LINEAR)
    return turned


def inversion(picture: Floats, severity: int, rng: np.random.Generator) -> Floats:
    return np.float32(1) - picture


def turn(height: int, width: int, severity: int) -> npt.NDArray[np.float64]:
    """Return the affine matrix of a turn about the centre, counter-clockwise."""
    return np.asarray(cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), ANGLES[severity - 1], 1.0))


DRAW: Mapping[str, Draw] = MappingProxyType(
    {"gaussian_noise": gaussian_noise, "rotation": rotation, "inversion": inversion}
)


def shifted(picture: Pixels, domain: Domain, rng: np.random.Generator) -> Pixels:
    """Return a shifted picture, rounded to bytes."""
    drawn = DRAW[domain.shift](picture.astype(np.float32) / np.float32(255), domain.severity, rng)
    return np.clip(np.rint(drawn * 255), 0, 255).astype(np.uint8)
