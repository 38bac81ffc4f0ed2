"""How long a run will take, estimated before it begins: the plans of streaming members are pure and can be asked.

A learner's plans are asked as if every upload arrived at once and no label changed; what is counted then is how many
pictures go through a network, forward and back. The constants are measured on one core; `speed` compares this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftlab.platform.adaptation.base import Adaptation, Phase
from driftlab.platform.core.limits import time_limit
from driftlab.platform.core.records import Stored
from driftlab.platform.core.systems import System
from driftlab.platform.lab.builds import recipes_of
from driftlab.platform.lab.cells import points_of, tenants_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.lab.size import STEP_PX_S, frame_seconds
from driftlab.platform.networks.training.artifacts import FamilyRecipe, is_kept
from driftlab.platform.sim.setting import Cell, StreamSpec
from driftlab.platform.streaming.base import Seen, StreamFacts, Streaming

FORWARD_SHARE = 0.3  # of a training step, what a forward pass alone takes
WINDOW_S = 2e-3  # to share a device out once, where nothing else runs
FAMILY_S = 30.0  # to make a family of one network, beyond training the network
PLANS_S = 2.0  # that the plans of one system may take: a member of a user may never return
MAX_ROUNDS = 10_000  # of a plan that is asked
START_S, CELL_S = 8.0, 0.5  # until Ray and its workers are there, and for a cell beside what it computes
PROBE_S = 6.4e-4  # what the probe takes on the machine of the constants


@dataclass(frozen=True)
class WorkEstimate:
    """What one application computes over a session, in seconds of one core."""

    per_second: float  # to answer, for each second of the stream
    learning: tuple[tuple[float, float], ...] = ()  # when a phase begins, and how long it takes

    def until(self, time_s: float) -> float:
        """Sum up what is computed before a time; a phase that begins there is not."""
        return self.per_second * time_s + sum(spent for begins_s, spent in self.learning if begins_s < time_s)


class WorkEstimates:
    """Estimates what each application of a device computes, once for all cells in which it computes the same."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._known: dict[tuple[Any, ...], WorkEstimate] = {}

    def of(self, system: System, streams: Sequence[StreamSpec], *, live: bool) -> list[WorkEstimate]:
        if not live:
            return [WorkEstimate(WINDOW_S / self._window_s)]
        return [self._course(system, one) for one in streams]

    def _course(self, system: System, stream: StreamSpec) -> WorkEstimate:
        pixels, facts = stream.height * stream.width, StreamFacts(stream.fps, stream.duration_s)
        same = (repr(system.streaming), repr(system.adaptation), facts, pixels)
        if same not in self._known:
            try:
                with time_limit(PLANS_S):
                    phases = list(_phases(system, facts))
            except KeyboardInterrupt:
                raise
            except BaseException:  # a user's member may need more than is here, and a sys.exit is its cell's own
                phases = []
            learning = tuple((begins_s, passes * pixels * STEP_PX_S) for begins_s, passes in phases)
            self._known[same] = WorkEstimate(frame_seconds(stream.fps, stream.fps * pixels), learning)
        return self._known[same]


class Meter:
    """Turns the device-seconds that a cell reports into seconds of work."""

    def __init__(self, cell: Cell, courses: Sequence[WorkEstimate], told: Callable[[float], None]) -> None:
        self._courses, self._devices, self._told = courses, len(cell.devices), told
        self._time_s = self._done_s = 0.0
        self.whole_s = self._until(cell.duration_s)

    def __call__(self, device_s: float) -> None:
        """Say how much work is done since the last report."""
        self._time_s += device_s / self._devices
        before, self._done_s = self._done_s, self._until(self._time_s)
        self._told(self._done_s - before)

    def _until(self, time_s: float) -> float:
        return self._devices * sum(course.until(time_s) for course in self._courses)


def meters_of(experiment: Experiment, cells: Sequence[Cell], progress: Progress) -> dict[str, Meter]:
    """Make a meter for each cell that reports its work to the progress."""
    live, courses = {part.label: part.live for part in experiment.workloads}, WorkEstimates(experiment.window_s)
    return {
        cell.id: Meter(cell, courses.of(cell.system, _streams(cell), live=live[cell.workload]), progress.advanced)
        for cell in cells
    }


def _streams(cell: Cell) -> list[StreamSpec]:
    return [tenant.stream for tenant in cell.devices[0].apps]


@dataclass(frozen=True)
class Forecast:
    """What a run will take on one core like that of the constants."""

    frames: float
    cells_s: float
    to_build: int
    kept: int
    building_s: float

    def on_this_machine_s(self, cores: int, cells: int) -> float:
        """Say how long it takes here, with cells and networks side by side on the cores."""
        running_s = (self.cells_s + cells * CELL_S) / min(cores, cells)
        return (START_S + running_s + self.building_s / max(1, min(cores, self.to_build))) * slowness()


def forecast(experiment: Experiment) -> Forecast:
    """Estimate what every cell takes, and every network that is not kept yet."""
    streams = {part.label: [app.stream for app in tenants_of(experiment, part)] for part in experiment.workloads}
    courses, frames, cells_s = WorkEstimates(experiment.window_s), 0.0, 0.0
    for point in points_of(experiment):
        devices = sum(part.count for part in point.fleet.devices)
        inside = streams[point.workload.label]
        frames += devices * sum(one.fps * one.duration_s for one in inside if point.workload.live)
        cells_s += devices * sum(
            course.until(inside[0].duration_s) for course in courses.of(point.system, inside, live=point.workload.live)
        )
    recipes = list(recipes_of(experiment).values())
    missing = [recipe for recipe in recipes if not is_kept(recipe)]
    return Forecast(frames, cells_s, len(missing), len(recipes) - len(missing), sum(map(_building_s, missing)))


def slowness() -> float:
    """Say how many times as long as on the machine of the constants a core of this one takes."""
    rng = np.random.default_rng(0)
    a, b = rng.random((64, 64), np.float32), rng.random((64, 64), np.float32)
    took = []
    for _ in range(5):
        begun_s = time.process_time()
        for _ in range(100):
            np.tanh(a @ b)
        took.append(time.process_time() - begun_s)
    return max(0.05, min(took) / PROBE_S)


def _phases(system: System, facts: StreamFacts) -> Iterator[tuple[float, float]]:
    """List when the network learns, and how many training passes of a picture that takes."""
    streaming, adaptation = system.streaming.make(), system.adaptation.make()
    if streaming.feeds_learner:
        yield from _planned(streaming, adaptation, facts)
    elif adaptation.stream_batch:
        frames = adaptation.stream_batch
        for batch in range(int(facts.duration_s * facts.fps) // frames):
            yield batch * frames / facts.fps, _passes(adaptation, Phase(on_stream=True), frames)


def _planned(streaming: Streaming, adaptation: Adaptation, facts: StreamFacts) -> Iterator[tuple[float, float]]:
    state, now_s = streaming.start(facts), 0.0
    for _ in range(MAX_ROUNDS):
        plan = streaming.plan_uplink(state, facts, now_s, Seen())
        if plan is None or plan.send_s >= facts.duration_s:
            return
        frames = max(1, len(plan.times_s))
        answer = streaming.plan_downlink(
            state, facts, Stored(frames, frames, plan.send_s, plan.send_s, ()), plan.send_s
        )
        if answer.phase is not None and plan.times_s:
            yield plan.send_s, _passes(adaptation, answer.phase, frames)
        state, before_s = answer.state, now_s
        now_s = plan.send_s if plan.next_s is None else plan.next_s
        if now_s <= before_s:
            return


def _passes(adaptation: Adaptation, phase: Phase, frames: int) -> float:
    """Count training passes; one that only goes forward is a part of one."""
    work = adaptation.work_of(phase, frames)
    if work is None:  # only the phase itself can tell: all its steps over all its frames, then
        return float((phase.iterations or 1) * frames)
    back = sum(work.backward)
    return back + FORWARD_SHARE * max(0, sum(work.forward) - back)


def _building_s(recipe: FamilyRecipe) -> float:
    network = recipe.network
    own = FAMILY_S if recipe.scaling.make().needs_data else 0.0
    return network.steps * network.batch * network.height * network.width * STEP_PX_S + own
