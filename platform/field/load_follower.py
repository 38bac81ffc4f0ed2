"""Follow the load of this computer by its sensors and by the times of networks under it.

At every reading the scaling member receives a time per network that explains the newest inferences: the time that it
took before the stream, multiplied by the ratio that the running network has shown since the reading before, plus the
measured time to capture a frame.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.field.recording import PERIOD_S, HostSample, LoadSource, source_here
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.world.load import slowdown

MIN_SPEED = 1e-3  # that the law of the load gives: above 0, so that times remain finite


def cores_here() -> frozenset[int]:
    """Return the cores on which the calling thread may run; none if they are not listed here."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


class HostSensor:
    """Readings of this computer: the CPU load by other programs on the cores of the calling thread."""

    def __init__(
        self,
        memory_bytes: int,
        source: LoadSource | None = None,
        own_s: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        cores = cores_here()
        self._count = len(cores) or os.cpu_count() or 1
        self._memory_bytes, self._own_s, self._now = memory_bytes, own_s, now
        self._source = source_here(cores) if source is None else source
        self._last, self._cpu = self._sample(), 0.0

    def read(self, time_s: float) -> LoadReading:
        """Return the mean CPU load since the previous reading, and the other values at this moment."""
        (sample, own_s, at_s), (before, own_before_s, before_s) = self._sample(), self._last
        self._last = sample, own_s, at_s
        if at_s > before_s:
            own = (own_s - own_before_s) / (self._count * (at_s - before_s))
            self._cpu = max(0.0, sample.times.busy_since(before.times, self._cpu + own) - own)
        free_bytes = int(self._memory_bytes * (1 - sample.memory))
        return LoadReading(
            time_s, self._cpu, free_bytes, sample.clock, sample.temperature_c, sample.battery,
            memory=sample.memory, gpu=sample.gpu,
        )  # fmt: skip

    def _sample(self) -> tuple[HostSample, float, float]:
        return self._source.sample(), self._own_s(), self._now()


@dataclass
class NetworkTimes:
    """The times of an application's networks, corrected by its newest inferences."""

    idle: tuple[Variant, ...]  # with the times that they take without other programs
    ratio: float = 1.0  # of an inference to its idle time, since the previous reading
    rest_s: float = 0.0  # of the latency of a frame: to wake up and to capture it
    _ratios: list[float] = field(default_factory=list)
    _rests_s: list[float] = field(default_factory=list)

    def add(self, which: int, inference_s: float, latency_s: float) -> None:
        """Take the measured times of one frame."""
        self._ratios.append(inference_s / self.idle[which].latency_s)
        self._rests_s.append(max(0.0, latency_s - inference_s))

    def at_reading(self, reading: LoadReading) -> tuple[Variant, ...]:
        """Return the networks with times that, slowed by the load of the reading, are the measured ones.

        Without inferences in between, the earlier correction holds.
        """
        if self._ratios:
            self.ratio, self.rest_s = median(self._ratios), median(self._rests_s)
            self._ratios, self._rests_s = [], []
        speed = max(MIN_SPEED, slowdown((reading,)))
        return tuple(replace(one, latency_s=(one.latency_s * self.ratio + self.rest_s) * speed) for one in self.idle)


@dataclass
class LoadFollower:
    """Takes a reading every half second between two frames, and lets the scaling member choose at each."""

    device: DeviceSim
    times: NetworkTimes
    sensor: HostSensor
    period_s: float = PERIOD_S
    due_s: float = 0.0
    _row: dict[str, Any] = field(default_factory=dict)  # of the previous reading, whose interval has not ended

    def follow(self, now_s: float) -> None:
        """Take the reading that is due, if any, and pass it with corrected times to the scaling member."""
        if now_s < self.due_s:
            return
        self.due_s = now_s + self.period_s
        reading = self.sensor.read(now_s)
        (app,) = self.device.apps
        self.device.variants[app] = self.times.at_reading(reading)
        self._end_row(reading)
        self.device.sensor.taken.append(reading)
        self.device.on_reading()
        self._row = self._begin_row(app, reading)

    def close(self, now_s: float) -> None:
        """Complete the newest row, and restore the idle times of the networks."""
        (app,) = self.device.apps
        reading = self.sensor.read(now_s)
        self.times.at_reading(reading)
        self._end_row(reading)
        self.device.variants[app] = self.times.idle

    def _begin_row(self, app: str, reading: LoadReading) -> dict[str, Any]:
        state, grant = self.device.apps[app].choice.state, self.device.grants.get(app)
        return {
            "device": self.device.spec.name,
            "app": app,
            "time_s": reading.time_s,
            "sensed_cpu": reading.cpu,
            "forecast_cpu": None if state is None else self.device.runner.scaling.forecast(state),
            "free_bytes": reading.memory_bytes,
            "clock": reading.clock,
            "temperature_c": reading.temperature_c,
            "battery": reading.battery,
            "variant": None if grant is None else grant.variant,
            "note": None,
        }

    def _end_row(self, reading: LoadReading) -> None:
        """Write the row of the previous reading: its load and speed are those measured until this one."""
        if self._row:
            row: Mapping[str, Any] = {**self._row, "cpu": reading.cpu, "speed": 1 / self.times.ratio}
            self.device.runner.ledger.row("loads", **row)
            self._row = {}


def chooses_by_load(device: DeviceSim) -> bool:
    """Return whether the scaling member chooses among several networks, rather than the scheduler."""
    scheduling = device.runner.cell.system.scheduling
    left_open = scheduling.name == "uniform" or not getattr(scheduling.make(), "selects_variant", True)
    return left_open and all(len(variants) > 1 for variants in device.variants.values())
