"""The sensors of a device: readings of its load at a steady rate, none of which is ahead of the clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from driftlab.platform.core.records import LoadReading
from driftlab.platform.world.load import EDGE_S, Load

MAX_READINGS = 240  # that members are given: two minutes at 2 Hz


@dataclass
class LoadSensor:
    """The readings of one device so far; none where nothing else runs on it."""

    load: Load | None
    memory_bytes: int  # of the device
    taken: deque[LoadReading] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    due: int = 0  # number of the next reading

    def sense(self, now_s: float, spent_j: float) -> bool:
        """Take the reading that is due; False where none is."""
        if self.load is None or now_s < self.due / self.load.sense_hz - EDGE_S:
            return False
        self.due = math.floor((now_s + EDGE_S) * self.load.sense_hz) + 1
        self.taken.append(self.load.sense(now_s, self.memory_bytes, spent_j))
        return True

    def foresee(self, now_s: float) -> LoadReading:
        """Return the true load until the next reading, for bounds."""
        assert self.load is not None, "a device without load takes no readings"
        step, until_s = self.load.at(now_s), now_s + 1 / self.load.sense_hz
        free_bytes = int(self.memory_bytes * (1 - step.memory))
        cpu = self.load.mean_cpu(now_s, until_s)
        return LoadReading(
            now_s, cpu, free_bytes, step.clock, step.temperature_c, step.battery, step.contention, step.memory, step.gpu
        )  # fmt: skip

    @property
    def readings(self) -> tuple[LoadReading, ...]:
        """Return the newest readings, in order of time."""
        return tuple(self.taken)

    @property
    def free_bytes(self) -> int:
        """Return the free memory, as last sensed."""
        return self.taken[-1].memory_bytes if self.taken else self.memory_bytes

    @property
    def empty(self) -> bool:
        """Return whether the battery was empty at a reading: the device is off from then on."""
        return bool(self.taken) and self.taken[-1].battery is not None and self.taken[-1].battery <= 0
