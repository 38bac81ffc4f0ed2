"""Estimate the duration of a run before it starts, from the plans of streaming members.

Plans assume that uploads arrive at once and labels do not change. The estimate counts forward and backward passes per
image, and the times of each network (`network_time`). The constants were measured on one core of a reference host;
`slowness` compares this host with it. `benchmarks/estimates.py` compares estimates with runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from driftlab.datasets.domains.names import SET_PREFIX
from driftlab.platform.adaptation.base import Adaptation, Phase
from driftlab.platform.core.limits import time_limit
from driftlab.platform.core.parameters import parameters_of
from driftlab.platform.core.records import Stored
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.lab.builds import recipes_of, students_of
from driftlab.platform.lab.cells import app_specs_of, points_of
from driftlab.platform.lab.network_time import NetworkTime, reference, time_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, is_kept
from driftlab.platform.sim.setting import Cell, StreamSpec
from driftlab.platform.streaming.base import Seen, StreamFacts, Streaming

FORWARD_SHARE = 0.3  # duration of a forward pass / duration of a training step
WINDOW_S, PLAN_S = 9e-4, 1.3e-3  # of a device whose networks do not run, and to choose among them
EQUAL_SHARES = {"uniform", "status_quo"}  # schedulers that choose nothing
NETWORK_S = 1.0  # to open the data of a network, and to build it
FAMILY_S = 5.0  # to rank, cut and test the networks of a family
DRAWN_S, SIGN_S = 5e-3, 8e-4  # to render a training frame of streets, and of signs
SHOWN_S, SHOWN_PX_S = 2e-4, 1e-7  # to render and score a frame of a stream, and a pixel of it
SET_FRAMES, RENDERED_FRAMES = 4000, 1600  # of an epoch: labelled sets have about so many, rendered frames at most
WIDTH = 0.25  # mean work of a training step of a family relative to one of the whole network
PLANS_S = 2.0  # limit for the plans of one system: a plug-in may never return
MAX_ROUNDS = 10_000  # of one plan
BATCH = 8  # images in a training step of an adaptation without this parameter
START_S = 8.0  # of Ray and its workers
CELL_S, BARE_CELL_S = 0.15, 0.03  # overhead per cell, and of one whose networks do not run
PROBE_S = 6.4e-4  # duration of the probe on the reference host


@dataclass(frozen=True)
class ComputeEstimate:
    """Compute time of one application over a session, in seconds of one core."""

    per_second: float  # of inference, per second of the stream
    learning: tuple[tuple[float, float], ...] = ()  # start and duration of each training phase

    def until(self, time_s: float) -> float:
        """Return the compute time before `time_s` (exclusive)."""
        return self.per_second * time_s + sum(spent for begins_s, spent in self.learning if begins_s < time_s)


class ComputeEstimates:
    """Estimate the compute time per application; equal applications of several cells are estimated once."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._known: dict[tuple[Any, ...], ComputeEstimate] = {}

    def of(
        self,
        system: System,
        streams: Sequence[StreamSpec],
        *,
        run_networks: bool,
        networks: Sequence[NetworkTime] | None = None,
    ) -> list[ComputeEstimate]:
        """Estimate each stream with its network, by default the reference network, which needs no torch."""
        if not run_networks:
            plan_s = 0.0 if system.scheduling.name in EQUAL_SHARES else PLAN_S
            return [ComputeEstimate((WINDOW_S + plan_s) / self._window_s)]
        networks = networks or [reference(one.height * one.width) for one in streams]
        return [self._estimate(system, *pair) for pair in zip(streams, networks, strict=True)]

    def _estimate(self, system: System, stream: StreamSpec, network: NetworkTime) -> ComputeEstimate:
        pixels, facts = stream.height * stream.width, StreamFacts(stream.fps, stream.duration_s)
        same = (repr(system.streaming), repr(system.adaptation), facts, pixels, network)
        if same not in self._known:
            try:
                with time_limit(PLANS_S):
                    phases = list(_phases(system, facts))
            except KeyboardInterrupt:
                raise
            except BaseException:  # plug-ins may fail here or call sys.exit; their cells report it
                phases = []
            batch = _batch_of(system.adaptation)
            learning = tuple((begins_s, network.training_s(passes, batch)) for begins_s, passes in phases)
            shown_s = SHOWN_S + SHOWN_PX_S * pixels + network.frame_s
            self._known[same] = ComputeEstimate(stream.fps * shown_s, learning)
        return self._known[same]


class Meter:
    """Convert the device-seconds that a cell reports into seconds of estimated work."""

    def __init__(self, cell: Cell, estimates: Sequence[ComputeEstimate], report: Callable[[float], None]) -> None:
        self._estimates, self._devices, self._report = estimates, len(cell.devices), report
        self._time_s = self._done_s = 0.0
        self.whole_s = self._until(cell.duration_s)

    def __call__(self, device_s: float) -> None:
        """Report the estimated work since the last call."""
        self._time_s += device_s / self._devices
        before, self._done_s = self._done_s, self._until(self._time_s)
        self._report(self._done_s - before)

    def _until(self, time_s: float) -> float:
        return self._devices * sum(estimate.until(time_s) for estimate in self._estimates)


def meters_of(experiment: Experiment, cells: Sequence[Cell], progress: Progress) -> dict[str, Meter]:
    """Return a meter per cell that reports work to `progress`."""
    running, estimates = (
        {part.label: part.run_networks for part in experiment.workloads},
        ComputeEstimates(experiment.window_s),
    )
    return {
        cell.id: Meter(
            cell, estimates.of(cell.system, _streams(cell), run_networks=running[cell.workload]), progress.advanced
        )
        for cell in cells
    }


def _streams(cell: Cell) -> list[StreamSpec]:
    return [tenant.stream for tenant in cell.devices[0].apps]


@dataclass(frozen=True)
class Forecast:
    """Estimated time of a run on one core of the reference host."""

    frames: float
    cells_s: float
    to_build: int
    kept: int
    building_s: float

    def on_this_host_s(self, cores: int, cells: int) -> float:
        """Return the estimated time on this host, with cells and builds in parallel on its cores."""
        running_s = self.cells_s / min(cores, cells)
        return (START_S + running_s + self.building_s / max(1, min(cores, self.to_build))) * slowness()


def forecast(experiment: Experiment) -> Forecast:
    """Estimate the time of all cells and of all networks that are not cached."""
    streams = {part.label: [app.stream for app in app_specs_of(experiment, part)] for part in experiment.workloads}
    networks = {
        part.label: [time_of(one) for one in students_of(experiment, part)]
        for part in experiment.workloads
        if part.run_networks
    }
    estimates, frames, cells_s = ComputeEstimates(experiment.window_s), 0.0, 0.0
    for point in points_of(experiment):
        devices = sum(part.count for part in point.fleet.devices)
        watched = streams[point.workload.label]
        frames += devices * sum(one.fps * one.duration_s for one in watched if point.workload.run_networks)
        cells_s += CELL_S if point.workload.run_networks else BARE_CELL_S
        cells_s += devices * sum(
            estimate.until(watched[0].duration_s)
            for estimate in estimates.of(
                point.system,
                watched,
                run_networks=point.workload.run_networks,
                networks=networks.get(point.workload.label),
            )
        )
    recipes = list(recipes_of(experiment).values())
    missing = [recipe for recipe in recipes if not is_kept(recipe)]
    return Forecast(frames, cells_s, len(missing), len(recipes) - len(missing), _building_s(missing))


def slowness() -> float:
    """Return the probe time on this host divided by the probe time on the reference host."""
    rng = np.random.default_rng(0)
    a, b = rng.random((64, 64), np.float32), rng.random((64, 64), np.float32)
    took = []
    for _ in range(5):
        begun_s = time.process_time()
        for _ in range(100):
            np.tanh(a @ b)
        took.append(time.process_time() - begun_s)
    return max(0.05, min(took) / PROBE_S)


def can_act(system: System, facts: StreamFacts) -> bool:
    """Return whether a system sends samples or fills a batch before the end; also if it learns nothing."""
    streaming = system.streaming.make()
    learns = streaming.feeds_learner or system.adaptation.make().learns_on_stream
    return not learns or streaming.uses_statistics or next(_phases(system, facts), None) is not None


def _phases(system: System, facts: StreamFacts) -> Iterator[tuple[float, float]]:
    """Yield start and number of training passes (one image each) of every training phase or batch."""
    streaming, adaptation = system.streaming.make(), system.adaptation.make()
    if streaming.feeds_learner:
        yield from _planned(streaming, adaptation, facts)
    elif adaptation.learns_on_stream:
        frames = adaptation.stream_batch
        for batch in range(int(facts.duration_s * facts.fps) // frames):
            yield batch * frames / facts.fps, _passes(adaptation, Phase(on_stream=True), frames)


def _planned(streaming: Streaming, adaptation: Adaptation, facts: StreamFacts) -> Iterator[tuple[float, float]]:
    state, now_s, seen = streaming.start(facts), 0.0, Seen()
    for _ in range(MAX_ROUNDS):
        plan = streaming.plan_uplink(state, facts, now_s, seen)
        if plan is None or plan.send_s >= facts.duration_s:
            return
        frames = max(1, len(plan.times_s))
        downlink = streaming.plan_downlink(
            state, facts, Stored(frames, frames, plan.send_s, plan.send_s, ()), plan.send_s
        )
        if downlink.phase is not None and plan.times_s:
            yield plan.send_s, _passes(adaptation, downlink.phase, frames)
        state, before_s, seen = downlink.state, now_s, Seen(state=plan.state)
        now_s = plan.send_s if plan.next_s is None else plan.next_s
        if now_s <= before_s:
            return


def _passes(adaptation: Adaptation, phase: Phase, frames: int) -> float:
    """Count training passes; a forward pass without backward pass counts `FORWARD_SHARE`."""
    work = adaptation.passes_of(phase, frames)
    if work is None:  # known only when the phase runs: assume all steps over all frames
        return float((phase.iterations or 1) * frames)
    back = sum(work.backward)
    return back + FORWARD_SHARE * max(0, sum(work.forward) - back)


def _batch_of(adaptation: Member) -> int:
    """Return the images in a training step of an adaptation."""
    member = adaptation.make()
    return int(getattr(member, "batch", 0) or member.stream_batch or BATCH)


def _building_s(missing: Sequence[FamilyRecipe]) -> float:
    """Estimate the time to build families, and once each network from which they begin."""
    alone = {replace(recipe, scaling=Member("scaling", "fixed")) for recipe in missing}
    networks = [recipe.network for recipe in alone if not is_kept(recipe)]
    return sum(map(_network_s, networks)) + sum(_family_s(recipe) for recipe in missing)


def _network_s(recipe: Recipe) -> float:
    """Estimate the time to draw the training frames of a network and to train it."""
    images = recipe.steps * recipe.batch
    return (
        NETWORK_S + _drawing_s(recipe) * min(RENDERED_FRAMES, images) + time_of(recipe).training_s(images, recipe.batch)
    )


def _drawing_s(recipe: Recipe) -> float:
    """Estimate the time to render a training frame; those of a labelled set are read."""
    if recipe.workloads.startswith(SET_PREFIX):
        return 0.0
    return SIGN_S if recipe.workloads == "signs" else DRAWN_S


def _family_s(recipe: FamilyRecipe) -> float:
    """Estimate the time to build a family from its network, by the epochs that its member trains."""
    member, network = recipe.scaling.make(), recipe.network
    if not member.needs_data:
        return 0.0
    units = parameters_of(type(member))
    epochs: int = sum(getattr(member, name) for name, one in units.items() if one.unit == "epochs")
    sizes = len(getattr(member, "keep_ratios", (1.0,)))
    most = SET_FRAMES if network.workloads.startswith(SET_PREFIX) else RENDERED_FRAMES
    frames = min(most, network.steps * network.batch)
    batch = int(getattr(member, "batch", BATCH))
    return FAMILY_S + WIDTH * time_of(network).training_s(sizes * epochs * frames, batch)
