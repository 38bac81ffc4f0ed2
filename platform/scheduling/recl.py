"""RECL (NSDI 2023): allocate micro-windows by recent accuracy gain, and reuse stored networks.

In every window each training first receives one micro-window, in which no other trains. Each further micro-window goes
to the training with the largest recent accuracy gain per micro-window. A training starts from the best of the networks
in its learner's model zoo, which a selector ranks (`zoo.py`).

The learners at one site, a device or the server, share a zoo where their networks are built equally.

Differs from the paper: it is written from the abstract; a training is not scored after every micro-window, but when
its device next has an accuracy; at a server its zoo is used, and rounds run in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Demand, SchedulerInput
from driftlab.platform.scheduling.candidates import LearningApp, known, read_apps
from driftlab.platform.scheduling.plans import (
    SharePlan,
    equal_inference,
    inference_reserve,
    previous_state,
    to_grants,
)
from driftlab.platform.scheduling.sizing import ChosenConfigs, SharesAmongTrainings, plan_configs

ROUNDING_S = 1e-9
ANY_DROP = -1.0  # of accuracy; no change is below it


@dataclass(frozen=True)
class RecentGain:
    """The accuracy gain of an application in its micro-windows."""

    served_s: float = -math.inf  # start of its newest micro-window
    accuracy: float | None = None  # newest observed accuracy
    seen_s: float | None = None  # time of that observation
    spent_s: float = 0.0  # time in micro-windows since then
    per_s: float = math.inf  # gain per second of its micro-windows; infinite: not observed yet


@dataclass(frozen=True)
class MicroWindows:
    """The state: the training of the open micro-window, and the gains of all applications."""

    opened_s: float  # start of the window
    asked_s: float  # time of the last call
    learner: str | None = None  # application of the open micro-window
    gains: Mapping[str, RecentGain] = field(default_factory=dict)


@dataclass(frozen=True)
class Recl(SharesAmongTrainings):
    """RECL (NSDI 2023): allocate each micro-window to the training with the largest recent accuracy gain."""

    micro_window_s: Annotated[float, Gt(0), Means("duration of a micro-window, in which one training runs", "s")] = 5.0

    zoo: Annotated[
        Literal["shared", "own"],
        Means("whose stored networks a training may start from: those of all learners at its site, or only its own"),
    ] = "shared"

    version: ClassVar[int] = 2
    uses_observed_accuracy = True

    @property
    def recalls_on_server(self) -> bool:
        return True

    @property
    def shares_zoo(self) -> bool:
        return self.zoo == "shared"

    @property
    def recall_drop(self) -> float:
        """Return a drop that every round passes: RECL compares its stored networks before each training."""
        return ANY_DROP

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Give the training share to the training of the open micro-window; the next call is due at its end."""
        apps = read_apps(window)
        plan = plan_configs(apps, self.config_choice, window.window_s, lambda chosen: self.plan(apps, chosen))
        state = self._next_state(window, [app.app for app in apps if app.learns])
        trains = np.array([app.app == state.learner for app in apps], bool)
        single = replace(plan, training=np.where(trains, plan.training.sum(), 0.0))
        allocation = to_grants(window, apps, single, self.patience_s, state)
        if sum(app.learns for app in apps) < 2 or state.learner is None:
            return allocation
        return replace(allocation, again_s=state.gains[state.learner].served_s + self.micro_window_s - window.start_s)

    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        """Give all trainings equal shares, the mean of micro-windows, for the choice of configurations."""
        reserved = inference_reserve(apps, self.inference_share)
        trained = np.array([one is not None for one in chosen], np.float64)
        return SharePlan((1 - reserved) * trained / (trained.sum() or 1.0), equal_inference(apps, reserved), chosen)

    def _next_state(self, window: SchedulerInput, learning: Sequence[str]) -> MicroWindows:
        """Update the gains by new accuracies, and open the next micro-window if the last one is over."""
        now_s, own = window.start_s, previous_state(window).own
        before = own if isinstance(own, MicroWindows) else MicroWindows(now_s, now_s)
        opened_s = now_s if window.reason == "window" else before.opened_s
        spent_s = {before.learner: max(0.0, now_s - before.asked_s)}
        gains = {
            one.app: observe(before.gains.get(one.app, RecentGain()), one, spent_s.get(one.app, 0.0))
            for one in window.demands
        }
        learner = before.learner
        if learner is not None and learner in learning:
            end_s = gains[learner].served_s + self.micro_window_s
            if now_s < end_s - ROUNDING_S:
                return MicroWindows(opened_s, now_s, learner, gains)
        learner = next_learner({app: gains[app] for app in learning}, opened_s)
        if learner is not None:
            gains[learner] = replace(gains[learner], served_s=now_s)
        return MicroWindows(opened_s, now_s, learner, gains)


def observe(before: RecentGain, demand: Demand, spent_s: float) -> RecentGain:
    """Update an application's gain per second if its device has a new accuracy."""
    spent_s, accuracy = before.spent_s + spent_s, known(demand.observed)
    if accuracy is None or demand.observed_s == before.seen_s:
        return replace(before, spent_s=spent_s)
    per_s = before.per_s
    if before.accuracy is not None and spent_s > 0:
        per_s = (accuracy - before.accuracy) / spent_s
    return RecentGain(before.served_s, accuracy, demand.observed_s, 0.0, per_s)


def next_learner(gains: Mapping[str, RecentGain], opened_s: float) -> str | None:
    """Return the training without a micro-window in this window, else that of the largest gain."""

    def rank(app: str) -> tuple[bool, float, float, str]:
        one = gains[app]
        served = one.served_s >= opened_s
        return served, -one.per_s if served else 0.0, one.served_s, app

    return min(gains, key=rank, default=None)
