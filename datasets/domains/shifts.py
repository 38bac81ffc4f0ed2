"""Apply a domain's shift to an image."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.canvas import Floats, plasmas
from driftlab.datasets.domains.constants import BACKGROUND, constants_of
from driftlab.datasets.domains.corruptions import CORRUPTIONS
from driftlab.datasets.domains.names import ANGLES, shift_of
from driftlab.datasets.domains.orders import Domain

Pixels = npt.NDArray[np.uint8]
_CLOUD_DECAY = 1.7  # of the fractal in `background`


def shifted(image: Pixels, domain: Domain, rng: np.random.Generator) -> Pixels:
    """Return an image under a domain's shift; unchanged for `clean` and for shifts that select images."""
    if domain.shift == "clean" or shift_of(domain.shift).picks:
        return image
    changed = _apply(image / 255, domain, rng)
    return np.clip(np.rint(changed * 255), 0, 255).astype(np.uint8)


def turn(height: int, width: int, severity: int) -> npt.NDArray[np.float64]:
    """Return the affine matrix of a counter-clockwise rotation about the centre."""
    centre = ((width - 1) / 2, (height - 1) / 2)
    return np.asarray(cv2.getRotationMatrix2D(centre, ANGLES[severity - 1], 1.0), np.float64)


def _apply(image: Floats, domain: Domain, rng: np.random.Generator) -> Floats:
    height, width = image.shape[:2]
    if domain.shift == "inversion":
        return 1 - image
    if domain.shift == "rotation":
        return np.asarray(cv2.warpAffine(image, turn(height, width, domain.severity), (width, height)), np.float64)
    if domain.shift == "background":
        clouds = plasmas(3, height, width, _CLOUD_DECAY, rng)
        return np.asarray(np.abs(image - BACKGROUND[domain.severity - 1] * clouds.transpose(1, 2, 0)))
    row = constants_of(domain.shift, domain.severity, min(height, width))
    return CORRUPTIONS[domain.shift](image, row, rng)
