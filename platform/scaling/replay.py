"""Replay a rule on a drawn load, without networks.

Frames are right with the accuracy of the network that ran. A study of rules takes a thousandth of the time of a run. As
on a device, the rule chooses at each reading, a frame that arrives during another inference is skipped, and a frame
runs on the network of its capture.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.world.load import EDGE_S, Load

MAX_READINGS = 240
MEMORY_BYTES = 100_000_000
HEADROOM = 0.9  # of the time left, that a network chosen per frame may take; tuned on seeds 100 to 119
JUST_BEFORE_S = 0.1  # over which a frame reads the speed before its capture
Rule = Callable[[Sequence[Variant], Budget, Any], tuple[int, Any]]


@dataclass(frozen=True)
class RuleOutcome:
    """Means over the frames of a session."""

    right: float  # expected share that is right in time
    late: float  # share that was skipped or missed the deadline
    accuracy: float  # mean of the networks that ran, of skipped frames of the one before


@dataclass(frozen=True)
class LoadSession:
    """The conditions of a session."""

    load: Load
    goal_s: float
    fps: float = 2.5
    duration_s: float = 60.0


def replay(
    rule: Rule, networks: Sequence[Variant], session: LoadSession, *, leaves: bool = False, foresees: bool = False
) -> RuleOutcome:
    """Run a rule over a session and return its outcome.

    With `foresees` the rule receives the true load until the next reading, as bounds do. With `leaves` a frame leaves a
    path at the exit behind which the next stage would be late, at the speed of the stages that the frame has passed.
    """
    load, goal_s = session.load, session.goal_s
    readings: list[LoadReading] = []
    state, running = None, 0
    by_name = {one.name: one for one in networks}

    def choose(time_s: float) -> Variant:
        nonlocal state, running
        while (due_s := len(readings) / load.sense_hz) <= time_s + EDGE_S:
            readings.append(load.sense(due_s, MEMORY_BYTES))
            limit_s = min(goal_s, 1 / session.fps)
            budget = Budget(MEMORY_BYTES, latency_s=limit_s, load=tuple(readings[-MAX_READINGS:]), now_s=due_s)
            budget = replace(budget, coming=_coming(load, due_s)) if foresees else budget
            running, state = rule(networks, budget, state)
        return networks[running]

    def run(network: Variant, time_s: float) -> tuple[Variant, float]:
        return _run(_stages(network, by_name) if leaves else [network], load, time_s, goal_s)

    return _outcome(session, choose, run)


def replay_per_frame(networks: Sequence[Variant], session: LoadSession, *, revises: bool = False) -> RuleOutcome:
    """Choose a network for each frame at its capture, and return the outcome.

    The most accurate network runs whose latency is at most `HEADROOM` of the time until the deadline, at the speed just
    before the capture. With `revises` the frame chooses again at each exit, at the speed of the stage before it: to
    leave, or among the paths that continue its stages.
    """
    load, goal_s = session.load, session.goal_s
    by_name = {one.name: one for one in networks}
    stages = {one.name: _stages(one, by_name) for one in networks}

    def choose(time_s: float) -> Variant:
        room_s = HEADROOM * goal_s * load.mean_speed(max(0.0, time_s - JUST_BEFORE_S), time_s)
        fits = [one for one in networks if one.latency_s <= room_s]
        return max(fits, key=_accuracy) if fits else min(networks, key=lambda one: one.latency_s)

    def run(network: Variant, time_s: float) -> tuple[Variant, float]:
        if not revises:
            return network, duration_of(load, time_s, network.latency_s)
        now_s, done_s, count = time_s, 0.0, 0
        while True:
            passed = stages[network.name][count]
            work_s, count = passed.latency_s - done_s, count + 1
            took_s = duration_of(load, now_s, work_s)
            now_s, done_s = now_s + took_s, passed.latency_s
            room_s = HEADROOM * (time_s + goal_s - now_s) * work_s / took_s
            further = [
                one for one in networks
                if stages[one.name][count - 1 : count] == [passed] and one.latency_s - done_s <= room_s
            ]  # fmt: skip
            network = max([passed, *further], key=_accuracy)
            if network is passed:
                return passed, now_s - time_s

    return _outcome(session, choose, run)


def _outcome(
    session: LoadSession, choose: Callable[[float], Variant], run: Callable[[Variant, float], tuple[Variant, float]]
) -> RuleOutcome:
    """Return the outcome of choices at captures; a run returns its path and its time."""
    free_s = right = accuracy = 0.0
    late, frames = 0, math.ceil(session.duration_s * session.fps)
    for frame in range(frames):
        time_s = frame / session.fps
        network = choose(time_s)
        if time_s < free_s - EDGE_S:
            accuracy, late = accuracy + _reported(network), late + 1
            continue
        network, took_s = run(network, time_s)
        free_s = time_s + took_s
        accuracy += _reported(network)
        if took_s <= session.goal_s + EDGE_S:
            right += _reported(network)
        else:
            late += 1
    return RuleOutcome(right / frames, late / frames, accuracy / frames)


def best_per_frame(networks: Sequence[Variant], session: LoadSession) -> RuleOutcome:
    """Return the outcome if each frame ran on the most accurate network that is in time at the true speed."""
    load, goal_s, fps, duration_s = session.load, session.goal_s, session.fps, session.duration_s
    right, late, frames = 0.0, 0, math.ceil(duration_s * fps)
    for frame in range(frames):
        start_s = frame / fps
        room_s = goal_s * load.mean_speed(start_s, start_s + goal_s)
        in_time = [_reported(one) for one in networks if one.latency_s <= room_s + EDGE_S]
        right, late = right + max(in_time, default=0.0), late + (not in_time)
    return RuleOutcome(right / frames, late / frames, right / max(1, frames - late))


def _accuracy(network: Variant) -> float:
    return network.accuracy or 0.0


def _reported(network: Variant) -> float:
    return network.reported_accuracy or 0.0


def _stages(network: Variant, by_name: Mapping[str, Variant]) -> list[Variant]:
    """Return the paths that end at the exits of a path, from the first on.

    Return the network alone if there are none.
    """
    names = network.name.split(".")
    return [one for k in range(1, len(names) + 1) if (one := by_name.get(".".join(names[:k]))) is not None]


def _run(stages: Sequence[Variant], load: Load, start_s: float, goal_s: float) -> tuple[Variant, float]:
    """Return the path that a frame runs, and the time that it takes.

    The exits that it passes count as work of the stages, so that the latency of a path is that of its table.
    """
    now_s, done_s = start_s, 0.0
    for one, after in zip(stages, (*stages[1:], None), strict=True):
        work_s = one.latency_s - done_s
        took_s = duration_of(load, now_s, work_s)
        now_s, done_s = now_s + took_s, one.latency_s
        if after is None or now_s + (after.latency_s - done_s) * took_s / work_s > start_s + goal_s:
            return one, now_s - start_s
    raise AssertionError("a path has a stage")


def duration_of(load: Load, start_s: float, idle_s: float) -> float:
    """Return the time that an inference takes from a start on."""
    times_s = [step.time_s for step in load.steps]
    now_s, left_s = start_s, idle_s
    for number in range(max(0, bisect.bisect_right(times_s, start_s + EDGE_S) - 1), len(load.steps)):
        speed = load.steps[number].speed
        end_s = times_s[number + 1] if number + 1 < len(times_s) else math.inf
        if speed * (end_s - now_s) >= left_s:
            return now_s + left_s / speed - start_s
        left_s, now_s = left_s - speed * (end_s - now_s), end_s
    return math.inf


def _coming(load: Load, time_s: float) -> LoadReading:
    """Return the true load until the next reading, for bounds."""
    step = load.at(time_s)
    cpu = load.mean_cpu(time_s, time_s + 1 / load.sense_hz)
    return LoadReading(time_s, cpu, MEMORY_BYTES, step.clock, contention=step.contention, memory=step.memory)
