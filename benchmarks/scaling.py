"""Measure the costs by which fleets grow, and predict those of a large cluster; prints JSON lines.

`parts`: fleets of growing size whose devices share no server run on Ray in parts. `flat` is the processor time of a
device over that in the smallest fleet.

`placing`: the time that a cell takes to place an application and its camera in this process. Goal: at most 5 ms.

`nodes`: fleets of two sizes run in this process and, as if they shared a server, on clusters of simulated computers on
this machine. The difference of the sizes gives the cost of a device: processor time of this process, the driver, and of
all others, calls of the driver, and the driver's memory. A predicted time is the largest of the driver's, since a cell
has one driver, and that of the other processes divided by their cores. Processor time is used because the simulated
computers share this machine.

`check`: the time of a fleet of another size on each of these clusters, and the time that the costs on the first cluster
predict for it. Here all processes, the driver too, share this machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import psutil
from _shared import options_of, report
from devices import StrictProgress

from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import PATIENT, ClusterConfig, unwatched
from driftlab.actors.session import RaySession
from driftlab.platform.lab import parts
from driftlab.platform.lab.seal import run
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.runner import Runner

STORE_BYTES = 100 * 2**20
SAMPLE_S = 1.0
SMALL = 10  # the smaller fleet has this part of the devices
PREDICTED = {"devices": 100_000, "computers": 100, "cores": 16}


@dataclass(frozen=True)
class Cost:
    """Totals of one run."""

    seconds: float
    driver_s: float
    others_s: float
    calls: int
    driver_bytes: int

    def per_device(self, smaller: Cost, devices: int) -> dict[str, float]:
        """Return the cost of each of the devices that a smaller run has not."""
        return {
            "driver_ms": round(1e3 * (self.driver_s - smaller.driver_s) / devices, 2),
            "others_ms": round(1e3 * (self.others_s - smaller.others_s) / devices, 2),
            "calls": round((self.calls - smaller.calls) / devices, 1),
            "driver_kib": round((self.driver_bytes - smaller.driver_bytes) / devices / 1024),
        }


def fleet(devices: int, duration_s: float, system: str = "no_custom") -> dict[str, Any]:
    """Return an experiment of one cell, whose devices have different streams."""
    return {
        "name": "scaling",
        "systems": [system],
        "bounds": False,
        "snapshots": 0,
        "student": {"network": "half", "pretrain_steps": 2},
        "workloads": [{"name": "any-street", "duration_s": duration_s, "fps": 1, "height": 32, "width": 48}],
        "fleets": [{"name": "fleet", "devices": [{"count": devices}]}],
    }


class CountedBackend(RayBackend):
    """A backend that counts its calls and stays open between runs."""

    calls = 0

    def open(self, session: str) -> RaySession:
        opened, backend = super().open(session), self
        issue = opened._issue

        def counted(*args: Any) -> Any:
            backend.calls += 1
            return issue(*args)

        opened._issue = counted  # type: ignore[method-assign]
        return opened

    def close(self) -> None:
        """Do nothing until the end of the benchmark."""


SPENT_S: dict[tuple[int, float], float] = {}  # processor time of each process below this one, also of ended ones


def children_s() -> float:
    """Return the processor time of all processes below this one, of ended ones as last seen."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            SPENT_S[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
    return sum(SPENT_S.values())


def cost_of(document: dict[str, Any], backend: CountedBackend | None) -> Cost:
    """Run an experiment and return its cost."""
    others_s, driver_s, calls = children_s(), time.process_time(), backend.calls if backend else 0
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        given = {"open_backend": lambda: backend} if backend else {}
        run(document, out=f"{folder}/run", progress=StrictProgress(), **given)
    return Cost(
        time.perf_counter() - started_s,
        time.process_time() - driver_s,
        children_s() - others_s,
        (backend.calls if backend else 0) - calls,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def placing(system: str, devices: int, duration_s: float) -> dict[str, Any]:
    """Return the time of placing each application of a fleet, after a smaller one that warms up."""
    took_s, place = list[float](), Runner.place_app

    def timed(cell: Runner, app: AppSim) -> None:
        began_s = time.perf_counter()
        place(cell, app)
        took_s.append(time.perf_counter() - began_s)

    with mock.patch.object(Runner, "place_app", timed):
        cost_of(fleet(SMALL, duration_s, system), None)
        took_s.clear()
        cost_of(fleet(devices, duration_s, system), None)
    found = {"median_ms": statistics.median(took_s), "mean_ms": statistics.fmean(took_s)}
    rounded = {name: round(1e3 * value, 2) for name, value in found.items()}
    return {"benchmark": "scaling", "what": "placing", "system": system, "apps": len(took_s), **rounded, "goal_ms": 5}


@contextlib.contextmanager
def cluster_of(computers: int, workers: int) -> Iterator[CountedBackend]:
    """Connect to a new cluster of simulated computers on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"  # these clusters live for a minute
    cluster = Cluster()
    try:
        with unwatched():  # as a local Ray starts
            for number in range(computers):
                head = {"include_dashboard": False, "_system_config": PATIENT} if number == 0 else {}
                cluster.add_node(num_cpus=workers, object_store_memory=STORE_BYTES, **head)
        backend = CountedBackend(ClusterConfig(address=cluster.address, workers=workers))
        yield backend
        RayBackend.close(backend)
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Sample the memory of all processes, with shared pages in equal parts; the list has the peak."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            total = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def in_parts(system: str, fleets: Sequence[int], duration_s: float, workers: int) -> None:
    """Report the time and the memory of fleets in parts, from the smallest on."""
    backend, first_ms = CountedBackend(ClusterConfig(workers=workers, placement="cells")), 0.0
    try:
        cost_of(fleet(fleets[0], duration_s, system), backend)  # warms up
        for seed, devices in enumerate(fleets, 1):  # one for each: frames of equal streams would be kept
            with peak_memory() as peak:
                cost = cost_of({**fleet(devices, duration_s, system), "seeds": [seed]}, backend)
            each_ms = 1e3 * (cost.driver_s + cost.others_s) / devices
            first_ms = first_ms or each_ms
            line = {
                "benchmark": "scaling",
                "what": "parts",
                "system": system,
                "devices": devices,
                "seconds": round(cost.seconds, 1),
                "cpu_ms_per_device": round(each_ms, 2),
                "driver_ms_per_device": round(1e3 * cost.driver_s / devices, 2),
                "flat": round(each_ms / first_ms, 3),
                "peak_gib": round(peak[0] / 2**30, 2),
            }
            report(line)
    finally:
        RayBackend.close(backend)


def compare(backend: CountedBackend | None, devices: int, duration_s: float) -> dict[str, float]:
    """Return the cost per device from a small and a large fleet, after one that warms up."""
    small = max(1, devices // SMALL)
    cost_of(fleet(small, duration_s), backend)
    few, many = (cost_of(fleet(count, duration_s), backend) for count in (small, devices))
    return many.per_device(few, devices - small)


def as_nodes(devices: int, duration_s: float, clusters: Sequence[int], workers: int) -> None:
    """Report the costs of a device in this process and on clusters, and check those of the first."""
    report({"benchmark": "scaling", "what": "nodes", "computers": 0, **compare(None, devices, duration_s)})
    model: dict[str, float] = {}
    for computers in clusters:
        with cluster_of(computers, workers) as backend:
            cost = compare(backend, devices, duration_s)
            model = model or cost
            checked = checked_by(model, backend, 2 * devices, duration_s)
        report({"benchmark": "scaling", "what": "nodes", "computers": computers, **cost, "predicted": predicted(cost)})
        report({"benchmark": "scaling", "what": "check", "computers": computers, **checked})


def checked_by(model: dict[str, float], backend: CountedBackend, devices: int, duration_s: float) -> dict[str, Any]:
    """Return the time of the second half of a fleet, and the time that the model predicts."""
    sizes = {2: devices // 2, 3: devices}  # by seed: frames of equal streams would be kept
    half, whole = (cost_of({**fleet(count, duration_s), "seeds": [seed]}, backend) for seed, count in sizes.items())
    more, cores = devices - devices // 2, len(os.sched_getaffinity(0))
    driver_ms, all_ms = model["driver_ms"], model["driver_ms"] + model["others_ms"]
    predicted_s, measured_s = more * max(driver_ms, all_ms / cores) / 1e3, whole.seconds - half.seconds
    return {
        "devices": devices,
        "measured_s": round(measured_s, 2),
        "predicted_s": round(predicted_s, 2),
        "ratio": round(measured_s / predicted_s, 2),
    }


def predicted(cost: dict[str, float]) -> dict[str, Any]:
    """Return the time and the memory of the largest fleet, by the part that limits it."""
    devices, cores = PREDICTED["devices"], PREDICTED["computers"] * PREDICTED["cores"]
    driver_s, others_s = devices * cost["driver_ms"] / 1e3, devices * cost["others_ms"] / 1e3 / cores
    return {
        **PREDICTED,
        "driver_s": round(driver_s),
        "others_s": round(others_s),
        "driver_gib": round(devices * cost["driver_kib"] / 2**20, 1),
        "limit": "driver" if driver_s > others_s else "computers",
        "computers_that_one_driver_occupies": round(cost["others_ms"] / cost["driver_ms"] / PREDICTED["cores"], 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, nargs="*", default=[100, 1000, 10_000], help="sizes of those in parts")
    parser.add_argument("--learning", type=int, nargs="*", default=[100, 1000], help="the same with training (tent)")
    parser.add_argument("--placed", type=int, default=300, help="applications to place")
    parser.add_argument("--devices", type=int, default=200, help="of those as nodes; 0: none")
    parser.add_argument("--duration-s", type=float, default=20.0)
    parser.add_argument("--computers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, default=2)
    quick = {"fleets": [4], "learning": [], "devices": 10, "duration_s": 3.0, "computers": [1], "workers": 1}
    quick |= {"placed": 3}
    options = options_of(parser, **quick)
    if options.devices:  # first, since the peak of the driver's memory never falls
        with mock.patch.object(parts, "PART_DEVICES", 2 * options.devices):  # as if they shared a server
            as_nodes(options.devices, options.duration_s, options.computers, options.workers)
    for system, fleets in (("no_custom", options.fleets), ("tent", options.learning)):
        if fleets:
            report(placing(system, options.placed, options.duration_s))
            in_parts(system, sorted(fleets), options.duration_s, options.workers)
