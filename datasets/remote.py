"""The stream of a real device: its length, size and rate are known here, its frames only on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.datasets.frames import Frames, Times
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import RequestError


@dataclass(frozen=True)
class RemoteStream:
    """Knows everything of a camera's stream but its frames."""

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
        """Return no frames for no times; a camera shows others only in real time, on its device."""
        if len(times_s):
            raise RequestError(
                f"Workload '{self.name}' is a camera, which shows its frames in real time on a device only: "
                f"driftlab device --workload {self.name}"
            )
        return Frames(np.empty(0), np.empty((0, *self.size, 3), np.uint8), np.empty(0, np.int32))
