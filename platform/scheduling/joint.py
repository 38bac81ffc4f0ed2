"""Joint: which applications learn, in which way, in which order and on which share, all decided together.

What a way will bring is expected from earlier phases and trials (`beliefs.py`); it is tried out only where that is
worth more than its time. The best sequence of trainings is found by `sequencing.py`; labelling counts as the first part
of a training. It is planned anew whenever something changes, so only its first phase is ever carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Learning, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known, read_apps
from driftlab.platform.scheduling.gain_model import Outlook, Past, outlook, review, worth_of_trial
from driftlab.platform.scheduling.inference_shares import Skipped, split_answers
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, kept, settle
from driftlab.platform.scheduling.sequencing import SHORT_S, PlannedSteps, plan_steps

ENDLESS_S = 1e9  # horizon within which any gain is worth its time


@dataclass(frozen=True)
class Knowledge:
    """What the member keeps from call to call."""

    longest_s: float = 0.0  # window so far
    past: Mapping[str, Past] = field(default_factory=dict)


@dataclass(frozen=True)
class Joint(Scheduling):
    """Choose ways, order and shares of all applications together; train one after another."""

    joule_price: Annotated[float, Ge(0), Means("accuracy times seconds that a joule must gain")] = 0.0
    skipped: Annotated[Skipped, Means("what frames are worth that are skipped: nothing, or as in Ekya's table")] = (
        "lost"
    )
    horizon_s: HorizonS = None
    patience_s: PatienceS = 600.0

    version = 2
    wants = Wants(choosy=True, recall=0.1, observed=True, server=True)

    def allocate(self, window: Window) -> Allocation:
        """Plan anew whenever something changes; carry out the first phase."""
        before = kept(window).own
        knowledge = before if isinstance(before, Knowledge) else Knowledge()
        longest_s = max(knowledge.longest_s, window.window_s)
        horizon_s = self.horizon_s or longest_s
        views, past = [], {}
        for app in read_apps(window):
            demand = window.demands[app.index]
            reviewed = review(demand, knowledge.past.get(app.app, Past()), window.start_s)
            view, past[app.app] = outlook(window, app, reviewed)
            views.append(view)
        apps = [view.app for view in views]
        tries = dict(self._tries(window, apps, views, horizon_s))
        steps = self._planned(window, apps, horizon_s)
        if steps.first is None and tries:
            steps = self._trying(apps, min(tries), steps)
        learn = np.zeros(len(apps))
        if steps.first is not None:
            learn[steps.first] = steps.share
        answer = split_answers(apps, 1 - float(learn.sum()), self.skipped)
        own = {one.app.app: _promised(past[one.app.app], one, k) for one, k in zip(views, steps.chosen, strict=True)}
        plan = SharePlan(learn, answer, steps.chosen)
        settled = settle(window, apps, plan, self.patience_s, Knowledge(longest_s, own))
        grants = list(settled.grants)
        for index, ways in tries.items():
            grants[index] = replace(grants[index], tries=ways)
        return replace(settled, grants=tuple(grants))

    def _planned(self, window: Window, apps: Sequence[LearningApp], horizon_s: float) -> PlannedSteps:
        """Plan what has begun; where nothing of it is worth its time, let the most promising application label.

        Labels age: an application whose samples are labelled learns at once or not at all.
        """
        begun = [_has_begun(window.demands[app.index].learning) for app in apps]
        first = [app if there else replace(app, candidates=()) for app, there in zip(apps, begun, strict=True)]
        steps = plan_steps(first, horizon_s, self.joule_price, self.skipped)
        if steps.first is not None:
            return steps
        best = max((app for app in apps if app.state == "running" and app.learns), key=_speed, default=None)
        rest = [app if app is best else replace(app, candidates=()) for app in apps]
        return plan_steps(rest, ENDLESS_S, skipped=self.skipped)

    def _trying(self, apps: Sequence[LearningApp], index: int, steps: PlannedSteps) -> PlannedSteps:
        """Give a trial its share at once: the scheduler is not asked again when it begins."""
        one = Candidate(None, 1.0, 0.0, 1.0)
        alone = [replace(app, candidates=(one,) if app.index == index else ()) for app in apps]
        begun = plan_steps(alone, ENDLESS_S, skipped=self.skipped)
        return replace(steps, first=begun.first, share=begun.share)

    def _tries(
        self, window: Window, apps: Sequence[LearningApp], views: Sequence[Outlook], horizon_s: float
    ) -> list[tuple[int, tuple[int, ...]]]:
        """List the ways to be tried out: those of unknown need, or the best one where that may change the decision."""
        coming = sum(max(0.0, *((one.after or 0.0) - app.now for one in app.candidates), 0.0) for app in apps)
        found = []
        for app, view in zip(apps, views, strict=True):
            learning = window.demands[app.index].learning
            if app.state != "offered" or not app.learns or learning is None:
                continue
            if any(known(way.accuracy) is not None for way in learning.ways):
                continue
            unknown = tuple(one.way for one in app.candidates if one.way is not None and not one.seconds)
            pairs = zip(view.app.candidates, view.deviations, strict=True)
            best, deviation = max(pairs, key=lambda pair: pair[0].after or 0.0)
            lasts_s = max(0.0, horizon_s - best.seconds)
            worth = worth_of_trial((best.after or 0.0) - app.now, deviation, lasts_s)
            if unknown:
                found.append((app.index, unknown))
            elif best.way is not None and worth > best.seconds * coming:
                found.append((app.index, (best.way,)))
        return found


def _speed(app: LearningApp) -> float:
    """Return the expected gain per second of the only candidate."""
    (one,) = app.candidates
    return ((one.after or 0.0) - app.now) / max(one.seconds, SHORT_S)


def _has_begun(learning: Learning | None) -> bool:
    """Tell whether an application has begun to label its newest samples, or to learn from them."""
    return learning is not None and (
        learning.state == "offered" or learning.way is not None or learning.left.alone_s > 0
    )


def _promised(past: Past, view: Outlook, chosen: int | None) -> Past:
    """Note what is expected of a way that was chosen."""
    if view.app.state != "offered" or past.begun:
        return past
    if chosen is None:
        return replace(past, promise=None)
    return replace(past, promise=view.promises[chosen], usual_s=view.app.candidates[chosen].seconds)
