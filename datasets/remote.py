"""The camera of a real device as a stream with known length, size and rate, but without frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.datasets.frames import Frames, Times
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import RequestError


@dataclass(frozen=True)
class RemoteStream:
    """A camera's stream without its frames."""

    name: str
    size: tuple[int, int]
    fps: float
    duration_s: float

    has_truth = False
    classes = CLASSES

    def changes_s(self) -> tuple[float, ...]:
        """Return no times: a camera does not announce its scene changes."""
        return ()

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return an empty batch for no times; raise RequestError for any time."""
        if len(times_s):
            raise RequestError(
                f"Workload '{self.name}' is a camera, which shows its frames in real time on a device only: "
                f"driftlab device --workload {self.name}"
            )
        return Frames(np.empty(0), np.empty((0, *self.size, 3), np.uint8), np.empty(0, np.int32))
