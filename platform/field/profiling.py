"""Measure networks on this device: time, memory and energy of a frame, as CSV for `variants:`."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from driftlab.errors import RequestError
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.field.camera import is_camera
from driftlab.platform.field.energy import EnergySensor, read_all_j
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.cells import app_specs_of, devices_of, systems_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.scaling.base import Budget
from driftlab.platform.sim.inline import InlineBackend, InlineJob
from driftlab.platform.sim.setting import AppNetworks, AppSpec, StudentSpec, setup_key
from driftlab.platform.world.hardware import Hardware

WARM_UP, MIN_RUNS = 3, 5  # runs of a network
QUICK_RUNS = 2  # of a network that is measured when its device starts
PAUSE_S = 0.02  # between two runs
FRAMES = 4  # of the stream, which a measurement repeats
COLUMNS = (
    "app",
    "variant",
    "accuracy",
    "latency_ms",
    "memory_bytes",
    "weight_bytes",
    "energy_mj",
    "macs",
    "workload",
    "scaling",
    "energy_from",
)


@dataclass(frozen=True)
class NetworkProfile:
    """A network of an application as measured here."""

    variant: Variant
    energy_from: str  # name of the sensor, or of the hardware profile that computed it


@dataclass(frozen=True)
class ProfileRow:
    """A row of the CSV."""

    app: str
    workload: str
    scaling: str
    profile: NetworkProfile

    def cells(self) -> tuple[Any, ...]:
        """Return the values of `COLUMNS`."""
        one = self.profile.variant
        energy_mj = None if one.energy_j is None else f"{one.energy_j * 1e3:.6g}"
        cost = (f"{one.latency_s * 1e3:.6g}", one.memory_bytes, one.weight_bytes, energy_mj, one.macs)
        return (self.app, one.name, one.accuracy, *cost, self.workload, self.scaling, self.profile.energy_from)


def profile_experiment(
    experiment: Experiment, seconds: float, sensors: Sequence[EnergySensor], progress: Progress
) -> list[ProfileRow]:
    """Build and measure the networks of every application of an experiment, under its first seed."""
    if experiment.compute.torch_device != "cpu":
        raise RequestError(
            f"compute.torch_device is '{experiment.compute.torch_device}', but networks are measured on the processor. "
            "Use cpu."
        )
    settings, seed = settings_of(experiment, InlineBackend(), progress), experiment.seeds[0]
    members = {repr(system.scaling): system.scaling for system in systems_of(experiment)}
    rows = []
    for workload in experiment.workloads:
        apps = app_specs_of(experiment, workload)
        (device, *_) = devices_of(experiment.fleets[0], workload, apps, seed)
        for scaling in members.values():
            setup = settings[setup_key(workload.label, scaling, seed)]
            for app in device.apps:
                networks = setup.apps[app.name]
                for one in profile_app(app, networks, scaling, device.hardware, seconds, sensors):
                    rows.append(ProfileRow(app.name, workload.label, str(scaling), one))
    return rows


def profile_app(
    app: AppSpec,
    networks: AppNetworks,
    scaling: Member,
    hardware: Hardware,
    seconds: float,
    sensors: Sequence[EnergySensor],
) -> Iterator[NetworkProfile]:
    """Measure each network of an application on frames of its stream, the smallest first."""
    for computed, run in _runs_of(app, networks, scaling, hardware):
        latency_s, energy_j = measured_run(run, seconds, sensors)
        found = replace(
            computed,
            latency_s=latency_s,
            memory_bytes=computed.memory_bytes + peak_bytes(run),
            weight_bytes=computed.memory_bytes,
            energy_j=computed.energy_j if energy_j is None else energy_j,
        )
        sensor = " and ".join(sensor.name for sensor in sensors)
        yield NetworkProfile(found, f"computed: {hardware.name}" if energy_j is None else sensor)


def with_quick_times(
    app: AppSpec, networks: AppNetworks, scaling: Member, hardware: Hardware, limit_s: float
) -> tuple[Variant, ...]:
    """Return the networks of an application with quickly measured times: the least of two warm runs.

    When the limit is exceeded, the others keep their computed time, in proportion to those that were measured.
    """
    found: list[Variant] = []
    until_s, ratios = time.monotonic() + limit_s, list[float]()
    for computed, run in _runs_of(app, networks, scaling, hardware):
        if time.monotonic() < until_s or not ratios:
            run()
            took_s = min(_processor_s(run) for _ in range(QUICK_RUNS))
            ratios.append(took_s / computed.latency_s)
        else:
            took_s = median(ratios) * computed.latency_s
        found.append(replace(computed, latency_s=max(took_s, 1e-9)))
    return tuple(found)


def _processor_s(run: Callable[[], None]) -> float:
    started_s = time.thread_time()
    run()
    return time.thread_time() - started_s


def _runs_of(
    app: AppSpec, networks: AppNetworks, scaling: Member, hardware: Hardware
) -> Iterator[tuple[Variant, Callable[[], None]]]:
    """Yield each network of an application, and a function that runs it on the next frame."""
    from driftlab.platform.networks.predict import predict
    from driftlab.platform.sim.nodes.camera import stream_of
    from driftlab.platform.sim.nodes.networks import family_of, network_for

    weights, member = networks.student.weights, scaling.make()
    assert isinstance(weights, InlineJob)
    size = (app.stream.height, app.stream.width)
    spec = StudentSpec(networks.student.name, networks.classes, *size, Member("adaptation", "frozen"), scaling, 0)
    family = family_of(spec, member, weights.reply.payload)
    images = np.zeros((1, *size, 3), np.uint8)  # for a camera, which opens with the streams
    if not is_camera(app.stream.workload):
        images = stream_of(app.stream).at([number / app.stream.fps for number in range(FRAMES)]).images
    for which, computed in enumerate(networks.computed(hardware)):
        model, numbers = network_for(member, family, Budget(variant=which)), iter(range(2**62))

        def run(model: Any = model, numbers: Iterator[int] = numbers) -> None:
            frame = next(numbers) % len(images)
            predict(model, images[frame : frame + 1], task=networks.task)

        yield computed, run


def measured_run(
    run: Callable[[], None], seconds: float, sensors: Sequence[EnergySensor]
) -> tuple[float, float | None]:
    """Return the median processor time of a run, and its energy if the sensors measure any.

    Processor time excludes that of other programs; a sensor includes them. Times are taken with a pause before each
    run, as between frames, since caches are cold then; energy is that of runs without pauses.
    """
    for _ in range(WARM_UP):
        run()
    took_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while len(took_s) < MIN_RUNS or time.perf_counter() < until_s:
        time.sleep(PAUSE_S)
        started_s = time.thread_time()
        run()
        took_s.append(time.thread_time() - started_s)
    before_j, runs, until_s = read_all_j(sensors), 0, time.perf_counter() + seconds
    while before_j is not None and (runs < MIN_RUNS or time.perf_counter() < until_s):
        run()
        runs += 1
    after_j = read_all_j(sensors)
    energy_j = None if before_j is None or after_j is None else (after_j - before_j) / runs
    return max(median(took_s), 1e-9), energy_j


def peak_bytes(run: Callable[[], None]) -> int:
    """Return the most memory that a run allocates at a time, as PyTorch's allocator reports it."""
    from torch.autograd.profiler import profile  # torch.profiler imports the compiler, for seconds

    with _without_stderr(), profile(use_kineto=True, profile_memory=True) as profiler:
        run()
    results = profiler.kineto_results
    assert results is not None, "the profiler has ended"
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held_bytes = most_bytes = 0
    for _, count in changes:
        held_bytes += count
        most_bytes = max(most_bytes, held_bytes)
    return most_bytes


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard the stderr of C++ code: PyTorch's profiler reports each start there."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def write_profile(file: Path, rows: Sequence[ProfileRow]) -> None:
    """Write the rows as CSV, ended by newlines; an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *(row.cells() for row in rows)])
    write_atomically(file, text.getvalue())
