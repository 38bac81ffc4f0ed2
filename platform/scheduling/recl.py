"""RECL: the time for learning goes, in micro-windows, to the training whose accuracy rises fastest.

In every window each training first gets one micro-window, in which it alone learns. Every further one goes to the
training with the largest recent gain in accuracy per micro-window. Every training begins from the best of the networks
that its learner has stored, which a selector ranks (`zoo.py`).

Differs from the paper: it is written from the abstract; a training is not scored after every micro-window, but when
its device next knows its accuracy; and applications store networks each for itself, since theirs have other classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Demand, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, known, read_apps
from driftlab.platform.scheduling.plans import SharePlan, answering, kept, reserve, settle
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings, plan_ways

ROUNDING_S = 1e-9


@dataclass(frozen=True)
class RecentGain:
    """What an application's accuracy has gained in its micro-windows."""

    served_s: float = -math.inf  # start of its newest micro-window
    accuracy: float | None = None  # newest that the device knows
    seen_s: float | None = None  # from when on it is known
    spent_s: float = 0.0  # in micro-windows since then
    per_s: float = math.inf  # gain by second of its micro-windows; infinite: not known yet


@dataclass(frozen=True)
class MicroWindows:
    """Which application learns, and what is known of all."""

    opened_s: float  # start of the window
    asked_s: float  # of the last call
    learner: str | None = None  # in whose micro-window that was
    gains: Mapping[str, RecentGain] = field(default_factory=dict)


@dataclass(frozen=True)
class Recl(SharesAmongTrainings):
    """Let one training learn at a time, for a micro-window: the one of the largest recent gain."""

    micro_window_s: Annotated[float, Gt(0), Means("time for which one training learns alone", "s")] = 5.0

    version: ClassVar[int] = 2
    wants = Wants(observed=True, recall=-1.0)

    def allocate(self, window: Window) -> Allocation:
        """Begin the next micro-window where one is over; the member is called again at its end."""
        apps = read_apps(window)
        plan = plan_ways(apps, self.ways, window.window_s, lambda chosen: self.plan(apps, chosen))
        now = self._turn(window, [app.app for app in apps if app.learns])
        learns = np.array([app.app == now.learner for app in apps], bool)
        alone = replace(plan, learn=np.where(learns, plan.learn.sum(), 0.0))
        allocation = settle(window, apps, alone, self.patience_s, now)
        if sum(app.learns for app in apps) < 2 or now.learner is None:
            return allocation
        return replace(allocation, again_s=now.gains[now.learner].served_s + self.micro_window_s - window.start_s)

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        """Give all trainings equal shares, as the mean of micro-windows: ways are chosen for these."""
        answers, learn = reserve(apps, self.answer), np.array([one is not None for one in chosen], np.float64)
        return SharePlan((1 - answers) * learn / (learn.sum() or 1.0), answering(apps, answers), chosen)

    def _turn(self, window: Window, learning: Sequence[str]) -> MicroWindows:
        """Return the micro-window that is open now, and the gains so far."""
        now_s, own = window.start_s, kept(window).own
        before = own if isinstance(own, MicroWindows) else MicroWindows(now_s, now_s)
        opened_s = now_s if window.reason == "window" else before.opened_s
        spent = {before.learner: max(0.0, now_s - before.asked_s)}
        gains = {
            one.app: observe(before.gains.get(one.app, RecentGain()), one, spent.get(one.app, 0.0))
            for one in window.demands
        }
        learner = before.learner
        if (
            learner is not None
            and learner in learning
            and now_s < gains[learner].served_s + self.micro_window_s - ROUNDING_S
        ):
            return MicroWindows(opened_s, now_s, learner, gains)
        learner = next_learner({app: gains[app] for app in learning}, opened_s)
        if learner is not None:
            gains[learner] = replace(gains[learner], served_s=now_s)
        return MicroWindows(opened_s, now_s, learner, gains)


def observe(before: RecentGain, demand: Demand, spent_s: float) -> RecentGain:
    """Note a new accuracy, and what the time since the last one has gained."""
    spent_s, accuracy = before.spent_s + spent_s, known(demand.observed)
    if accuracy is None or demand.observed_s == before.seen_s:
        return replace(before, spent_s=spent_s)
    per_s = before.per_s
    if before.accuracy is not None and spent_s > 0:
        per_s = (accuracy - before.accuracy) / spent_s
    return RecentGain(before.served_s, accuracy, demand.observed_s, 0.0, per_s)


def next_learner(gains: Mapping[str, RecentGain], opened_s: float) -> str | None:
    """Return the training that has not learned in this window, else that of the largest gain, else the longest idle."""

    def rank(app: str) -> tuple[bool, float, float, str]:
        one = gains[app]
        served = one.served_s >= opened_s
        return served, -one.per_s if served else 0.0, one.served_s, app

    return min(gains, key=rank, default=None)
