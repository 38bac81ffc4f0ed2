"""Labelled sets as streams without drift: one test image per frame, each once before any repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames, Times, frame_number
from driftlab.datasets.labelled import SIDES, class_names, open_test
from driftlab.datasets.labelled_set import LabelledImages

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slides:
    """A labelled set at a given size and rate; the seed shuffles its test part."""

    name: str
    labelled: str  # name of the set
    size: tuple[int, int]
    fps: float
    duration_s: float
    seed: int

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the class names, also for a size that the set does not have: reading its images then raises."""
        size = tuple(SIDES[0] if SIDES[0] <= side <= SIDES[1] else side for side in self.size)
        return class_names(self.labelled, size=(size[0], size[1]))

    @property
    def has_truth(self) -> bool:
        return True

    def changes_s(self) -> tuple[float, ...]:
        """Return no times: a set is one scene."""
        return ()

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return the images at these times; frame k starts at k / fps."""
        times = np.asarray(times_s, np.float64)
        numbers = np.array([frame_number(self, float(time_s)) for time_s in times], np.int64)
        scenes = np.zeros(len(times), np.int32)
        if not len(times):  # a request for the shape must not open the images
            return Frames(times, np.empty((0, *self.size, 3), np.uint8), scenes, classes=numbers)
        shown = self.rows(numbers)
        return Frames(times, self._pictures.images[shown], scenes, classes=self._pictures.classes[shown])

    def check(self) -> None:
        """Decode all images; raise DataError at an unreadable one."""
        self.at([0.0])

    def rows(self, numbers: Rows) -> Rows:
        """Return the index of each frame's image."""
        return numbers % len(self._pictures.images)

    @cached_property
    def _pictures(self) -> LabelledImages:
        """Return the test images in shuffled order, at most as many as the stream has frames."""
        count = math.ceil(self.duration_s * self.fps)
        test = open_test(self.labelled, size=self.size, at_most=count)
        order = np.random.default_rng([self.seed, 33]).permutation(len(test.images))
        return LabelledImages(test.images[order], test.classes[order])
