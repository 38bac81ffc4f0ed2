"""Applications with inference and training, as input of a scheduler.

Members plan in the order of names, so that plans do not depend on the order of arrival. Every estimate is within [0,
1]: a missing or NaN one is unknown, one outside counts as the nearest bound, which a note reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from driftlab.platform.core.records import TaskCost
from driftlab.platform.scheduling.base import Demand, SchedulerInput, TrainingConfig, TrainingOffer

Skipped = Literal["wrong", "stale"]
DEFAULT_ACCURACY = 0.5  # of an application without any estimate
DEFAULT_FULL_SHARE = 0.25  # share at which every frame is predicted, if the network's latency is unknown


@dataclass(frozen=True)
class Candidate:
    """A training configuration: its isolated time, and the accuracies during and after training."""

    config: int | None  # index among the offered configurations; None: the running phase
    seconds: float
    accuracy_before: float
    accuracy_after: float | None  # None: unknown
    size: float = 1.0  # of the network, as a share of the full one
    joules: float = 0.0
    cost: TaskCost = field(default_factory=TaskCost)
    trial_fraction: float = 1.0  # fraction of its steps after which `after` was measured


@dataclass(frozen=True)
class LearningApp:
    """One application: its accuracy, its share for every frame, and its training candidates."""

    index: int  # among the demands
    app: str
    now: float
    full_share: float = DEFAULT_FULL_SHARE  # at which it predicts every frame
    candidates: tuple[Candidate, ...] = ()  # those with an estimate; all if none has one
    state: Literal["idle", "offered", "running"] = "offered"  # idle: inference only; running: a single candidate
    note: str = ""
    skipped: Skipped = "stale"  # whether a skipped frame is wrong, or scored with the last prediction

    @property
    def learns(self) -> bool:
        return bool(self.candidates)

    @property
    def lacks_estimates(self) -> bool:
        """Return whether no accuracy estimate exists: labelling, trials, or no data."""
        return self.learns and self.candidates[0].accuracy_after is None


def read_apps(window: SchedulerInput) -> list[LearningApp]:
    """Return the applications of a window, in the order of names."""
    order = sorted(range(len(window.demands)), key=lambda i: window.demands[i].app)
    apps = [_read(i, window.demands[i], window.memory_bytes) for i in order]
    return [replace(app, skipped="stale" if window.demands[app.index].video else "wrong") for app in apps]


def known(accuracy: float | None) -> float | None:
    """Clip an accuracy to [0, 1]; None if it is missing or NaN."""
    return None if accuracy is None or math.isnan(accuracy) else min(1.0, max(0.0, accuracy))


def _read(index: int, demand: Demand, memory_bytes: int) -> LearningApp:
    network = demand.variants[demand.running or 0] if demand.variants else None
    full_share = min(1.0, max(network.latency_s * demand.fps, 1e-6)) if network else DEFAULT_FULL_SHARE
    learning = demand.learning
    sources = (learning.accuracy_before if learning else None, demand.observed, network.accuracy if network else None)
    now = next((one for one in map(known, sources) if one is not None), DEFAULT_ACCURACY)
    if learning is None:
        return LearningApp(index, demand.app, now, full_share, state="idle")
    if learning.state == "running":
        left, then = learning.left, known(learning.accuracy_after)
        rest = Candidate(None, left.isolated_s, now, then, joules=left.joules, cost=left)
        return LearningApp(index, demand.app, now, full_share, (rest,), "running", _note(learning))
    fits = [(i, way) for i, way in enumerate(learning.configs) if way.cost.memory_bytes <= memory_bytes]
    candidates = tuple(_candidate(i, way, now) for i, way in fits if math.isfinite(way.cost.isolated_s))
    missing = "" if candidates else f"does not learn: no way fits into {memory_bytes} bytes"
    estimated = tuple(one for one in candidates if one.accuracy_after is not None)
    return LearningApp(index, demand.app, now, full_share, estimated or candidates, note=missing or _note(learning))


def _candidate(index: int, config: TrainingConfig, now: float) -> Candidate:
    before = known(config.before)
    return Candidate(
        index,
        config.cost.isolated_s,
        now if before is None else before,
        known(config.accuracy),
        config.size or 1.0,
        config.cost.joules,
        config.cost,
        config.trial_fraction,
    )


def _note(learning: TrainingOffer) -> str:
    """Describe the estimates that are no accuracies."""
    estimates: Sequence[float | None] = (
        learning.accuracy_before,
        learning.accuracy_after,
        *(way.accuracy for way in learning.configs),
    )
    outside = [one for one in estimates if one is not None and not 0 <= one <= 1 and not math.isnan(one)]
    lost = sum(one is not None and math.isnan(one) for one in estimates)
    notes = [f"an estimate of {one:g} counts as {min(1.0, max(0.0, one)):g}" for one in outside]
    return "; ".join([*notes, *([f"{lost} estimates are no numbers"] if lost else [])])
