"""A stream of domains: the frames of another workload under shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.names import shift_of
from driftlab.datasets.domains.orders import Domain, Order
from driftlab.datasets.domains.shifts import Pixels, shifted, turn
from driftlab.datasets.frames import IGNORE, NO_CLASS, Frames, Stream, Times, frame_number

Boxes = npt.NDArray[np.float32]
_MAX_CACHED_VALUES = 32 * 32 * 3  # of an image whose shifted versions are cached


@dataclass(frozen=True)
class DomainStream:
    """Frames of a workload under the shifts of an order; scene numbers are domain numbers.

    Adaptation frames have no ground truth, so they are not scored.
    """

    name: str
    base: Stream
    order: Order
    adapt: range  # positions of the adaptation frames in each segment
    seed: int

    @property
    def fps(self) -> float:
        return self.base.fps

    @property
    def duration_s(self) -> float:
        return self.base.duration_s

    @property
    def size(self) -> tuple[int, int]:
        return self.base.size

    @property
    def classes(self) -> tuple[str, ...]:
        return self.base.classes

    @property
    def has_truth(self) -> bool:
        return self.base.has_truth

    def changes_s(self) -> tuple[float, ...]:
        """Return the times at which the domain changes; none for a mixed order."""
        frames = math.ceil(self.duration_s * self.fps - 1e-9)
        return tuple(start / self.fps for start in self.order.changes(frames))

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return the shifted frames at these times."""
        plain = self.base.at(times_s)
        numbers = [frame_number(self, float(time_s)) for time_s in plain.times_s]
        domains = [self.order.domain_at(number) for number in numbers]
        images, labels = plain.images.copy(), None if plain.labels is None else plain.labels.copy()
        boxes = None if plain.boxes is None else list(plain.boxes)
        for row, (number, domain) in enumerate(zip(numbers, domains, strict=True)):
            shown = self.order.domains[domain]
            images[row] = _shift(images[row], shown, self.seed, number)
            if shift_of(shown.shift).turns and labels is not None:
                labels[row] = turned_labels(labels[row], shown.severity)
            if shift_of(shown.shift).turns and boxes is not None:
                boxes[row] = turned_boxes(boxes[row], self.size, shown.severity)
        moved = None if boxes is None else tuple(boxes)
        frames = replace(plain, images=images, scenes=np.array(domains, np.int32), labels=labels, boxes=moved)
        return self._hide_truth(frames, np.array([n % self.order.frames in self.adapt for n in numbers], bool))

    def _hide_truth(self, frames: Frames, adapted: npt.NDArray[np.bool_]) -> Frames:
        """Return the frames without ground truth of the adaptation frames."""
        if frames.classes is not None:
            frames = replace(frames, classes=np.where(adapted, NO_CLASS, frames.classes))
        if frames.labels is not None:
            hidden = adapted[:, None, None]
            frames = replace(frames, labels=np.where(hidden, np.uint8(IGNORE), frames.labels))
        return frames


def _shift(image: Pixels, shown: Domain, seed: int, number: int) -> Pixels:
    """Return a shifted image; small images are cached, as all systems of a seed use the same ones."""
    if image.size > _MAX_CACHED_VALUES:
        return _shift_uncached(image, shown, seed, number)
    return shift_cached(image.tobytes(), image.shape, shown, seed, number)


@lru_cache(maxsize=1 << 14)
def shift_cached(pixels: bytes, shape: tuple[int, ...], shown: Domain, seed: int, number: int) -> Pixels:
    """Return a shifted image, given its bytes as the key of the cache."""
    return _shift_uncached(np.frombuffer(pixels, np.uint8).reshape(shape), shown, seed, number)


def _shift_uncached(image: Pixels, shown: Domain, seed: int, number: int) -> Pixels:
    return shifted(image, shown, np.random.Generator(np.random.SFC64([seed, 41, number])))


def turned_labels(labels: npt.NDArray[np.uint8], severity: int) -> npt.NDArray[np.uint8]:
    """Return a rotated label map; pixels from outside the image are IGNORE."""
    height, width = labels.shape
    matrix = turn(height, width, severity)
    turned = cv2.warpAffine(labels, matrix, (width, height), flags=cv2.INTER_NEAREST, borderValue=float(IGNORE))
    return np.asarray(turned, np.uint8)


def turned_boxes(boxes: Boxes, size: tuple[int, int], severity: int) -> Boxes:
    """Return the upright boxes around the rotated corners, clipped to the image; drop boxes outside."""
    height, width = size
    matrix = turn(height, width, severity)
    corners = boxes[:, [1, 2, 3, 2, 3, 4, 1, 4]].reshape(len(boxes), 4, 2) - 0.5  # pixel centres are whole numbers
    turned = corners @ matrix[:, :2].T + matrix[:, 2] + 0.5
    low = np.clip(turned.min(axis=1), 0, (width, height))
    high = np.clip(turned.max(axis=1), 0, (width, height))
    moved: Boxes = np.concatenate([boxes[:, :1], low, high], axis=1).astype(np.float32)
    visible: Boxes = moved[((high - low) > 0).all(axis=1)]
    return visible
