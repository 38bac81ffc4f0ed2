"""Measure the cost per device of a fleet of 1 000 devices against fleets of 10; prints JSON lines.

Every device has a different stream. Under `one_time` a device uploads frames and receives an update after training, so
that each has a device, an application and a learner node; under `tent` it learns on its stream. Both sides run on the
same Ray, after one cell to warm up. The small fleets have a tenth of the large one's work in all. They run once before
it and once after it, since the speed of a shared machine varies. Cost is the processor time of all processes, memory
is their proportional set size.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from _shared import options_of, report

from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.seal import run

LOOK_S = 5.0  # between two measurements of memory, which stop the process


class SharedBackend(RayBackend):
    """A backend that stays open between runs."""

    def close(self) -> None:
        """Do nothing until the end of the benchmark."""


class StrictProgress(Progress):
    """Raises when a cell fails."""

    def finished(self, cell: str, reason: str) -> None:
        assert not reason, (cell, reason)


@dataclass
class ProcessMeter:
    """Measures this process and its descendants, without the time of measuring their memory."""

    peak_bytes: int = 0
    looking_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def cpu_s(self) -> float:
        total = 0.0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total - self.looking_s

    def watch(self) -> None:
        while not self.over.wait(LOOK_S):
            now = 0
            for process in self._all():
                with contextlib.suppress(psutil.Error):
                    now += process.memory_full_info().pss
            self.peak_bytes = max(self.peak_bytes, now)
            self.looking_s = time.thread_time()

    def _all(self) -> Iterator[psutil.Process]:
        me = psutil.Process()
        yield from [me, *me.children(recursive=True)]


SYSTEMS = {
    "one_time": {"name": "one_time", "streaming": {"name": "one_time", "sample_s": 10, "iterations": 5}},
    "tent": {
        "name": "tent",
        "adaptation": {"name": "tent", "variant": "run", "predict_on": "frame", "stream_batch": 16},
    },
}


def fleets(system: str, count: int, devices: int, duration_s: float) -> dict[str, object]:
    """Return an experiment with so many cells of so many devices each."""
    return {
        "name": "devices",
        "systems": [SYSTEMS[system]],
        "bounds": False,
        "seeds": list(range(count)),
        "student": {"pretrain_steps": 20},
        "workloads": [{"name": "streets/driving_la", "duration_s": duration_s, "fps": 2.0}],
        "fleets": [{"name": "fleet", "devices": [{"count": devices}]}],
    }


def cost_s(backend: SharedBackend, meter: ProcessMeter, document: dict[str, object], devices: int) -> float:
    """Run the cells and return processor seconds per device."""
    with tempfile.TemporaryDirectory() as folder:
        before = meter.cpu_s()
        run(document, out=f"{folder}/run", open_backend=lambda: backend, progress=StrictProgress())
        return (meter.cpu_s() - before) / devices


def measure(system: str, devices: int, few: int, duration_s: float, config: ClusterConfig) -> dict[str, object]:
    """Compare a large fleet with small ones of few devices."""
    meter = ProcessMeter()
    backend = SharedBackend(config)

    def cost_of(count: int, devices: int) -> float:
        return cost_s(backend, meter, fleets(system, count, devices, duration_s), count * devices)

    small = max(1, devices // few // 10)
    try:
        cost_of(min(4, small), few)  # warm-up of Ray
        before = cost_of(small, few)
        watching = threading.Thread(target=meter.watch, daemon=True)
        watching.start()
        started = time.perf_counter()
        large = cost_of(1, devices)
        wall_s = time.perf_counter() - started
        meter.over.set()
        watching.join()
        after = cost_of(small, few)
    finally:
        RayBackend.close(backend)
    return {
        "benchmark": "devices",
        "system": system,
        "devices": devices,
        "cpu_s_per_device": round(large, 3),
        f"cpu_s_per_device_of_{few}": [round(before, 3), round(after, 3)],
        "ratio": round(2 * large / (before + after), 3),
        "goal": 1.1,
        "wall_s": round(wall_s, 1),
        "looking_s": round(meter.looking_s, 1),
        "peak_gib": round(meter.peak_bytes / 2**30, 2),
        "peak_gib_goal": 8,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--few", type=int, default=10, help="devices of a small fleet")
    parser.add_argument("--system", choices=list(SYSTEMS), action="append", help="both by default")
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--placement", choices=("cells", "nodes"), default="nodes")
    options = options_of(parser, devices=2, few=2, system=["tent"], duration_s=8.0, workers=1, placement="cells")
    config = ClusterConfig(workers=options.workers, placement=options.placement)
    for system in options.system or SYSTEMS:
        report(measure(system, options.devices, options.few, options.duration_s, config))
