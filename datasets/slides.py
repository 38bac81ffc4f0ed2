"""Labelled sets as streams: the pictures to judge by, one per frame, each once before any returns. Nothing drifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from driftlab.datasets.frames import Frames, Times, frame_number
from driftlab.datasets.labelled import SIDES, Pictures, open_set


@dataclass(frozen=True)
class Slides:
    """A labelled set at a given size and rate; the seed shuffles it and never moves a picture to another part."""

    name: str
    labelled: str  # name of the set
    size: tuple[int, int]
    fps: float
    duration_s: float
    seed: int

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names are the same at every size; a size that no set has is refused here all the same."""
        size = tuple(SIDES[0] if SIDES[0] <= side <= SIDES[1] else side for side in self.size)
        return open_set(self.labelled, size=(size[0], size[1]), counts=1).classes

    @property
    def has_truth(self) -> bool:
        return True

    def changes_s(self) -> tuple[float, ...]:
        """A set is one scene."""
        return ()

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Take the pictures shown at these times; frame k is shown from k / fps on."""
        times = np.asarray(times_s, np.float64)
        numbers = np.array([frame_number(self, float(time_s)) for time_s in times], np.int64)
        scenes = np.zeros(len(times), np.int32)
        if not len(times):  # whoever asks what frames would be like need not wait for the pictures
            return Frames(times, np.empty((0, *self.size, 3), np.uint8), scenes, classes=numbers)
        shown = numbers % len(self._pictures.images)
        return Frames(times, self._pictures.images[shown], scenes, classes=self._pictures.classes[shown])

    @cached_property
    def _pictures(self) -> Pictures:
        """Shuffle as many as the stream has frames."""
        found = open_set(self.labelled, size=self.size, counts=math.ceil(self.duration_s * self.fps)).test
        order = np.random.default_rng([self.seed, 33]).permutation(len(found.images))
        return Pictures(found.images[order], found.classes[order])
