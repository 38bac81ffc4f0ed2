"""Boundaries between domains, from statistics of pixels: without labels and without a network.

The first images of a domain are its reference. A domain ends where the mean of a batch differs in any statistic from
the reference by several standard errors, so that the limit follows the variation within the domain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
REFERENCE_IMAGES = 24
BATCHES = 8, 24  # newest images whose means are compared: few detect large changes early, many detect small ones
STANDARD_ERRORS = 5.5  # by which a statistic of a batch differs in another domain
FLOOR = 1e-3  # least standard deviation of a statistic; pixels are from 0 to 1
STATISTIC_MACS = 20  # per pixel


def image_statistics(images: npt.NDArray[np.uint8]) -> Floats:
    """Return level and spread of each channel, edges, curvature and saturation of every image."""
    pixels = images.astype(np.float64) / 255
    grey = pixels.mean(axis=-1)
    edges = [np.abs(np.diff(grey, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2)]
    curvature = np.abs(np.diff(grey, n=2, axis=2)).mean(axis=(1, 2))
    saturation = np.ptp(pixels, axis=-1).mean(axis=(1, 2))
    return np.stack([*pixels.mean(axis=(1, 2)).T, *pixels.std(axis=(1, 2)).T, *edges, curvature, saturation], axis=1)


@dataclass
class BoundaryDetector:
    """Detects the ends of domains in the statistics of successive images."""

    reference: list[Floats] = field(default_factory=list)
    newest: list[Floats] = field(default_factory=list)
    seen: int = 0  # images after the reference

    def add(self, statistics: Floats) -> bool:
        """Take an image into account; return whether it completes a batch of another domain."""
        if len(self.reference) < REFERENCE_IMAGES:
            self.reference.append(statistics)
            return False
        self.newest, self.seen = [*self.newest, statistics][-max(BATCHES) :], self.seen + 1
        if self.seen % min(BATCHES):
            return False
        known = np.array(self.reference)
        mean, spread = known.mean(axis=0), np.maximum(known.std(axis=0), FLOOR)
        for count in BATCHES:
            error = spread * np.sqrt(1 / len(known) + 1 / count)
            change = np.abs(np.mean(self.newest[-count:], axis=0) - mean)
            if len(self.newest) >= count and (change > STANDARD_ERRORS * error).any():
                self.reference, self.newest, self.seen = [], [], 0
                return True
        return False
