"""Joint: which applications learn, in which way, in which order and on which share, all decided together.

Estimates are corrected by how far earlier ones were off, and lowered by their uncertainty where that is asked for. The
best sequence of trainings is found by `sequencing.py`. It is planned anew whenever something changes, so only its first
phase is ever carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.answers import split_answers
from driftlab.platform.scheduling.base import Allocation, Demand, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, known, read_apps
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, kept, settle
from driftlab.platform.scheduling.sequencing import plan_steps

ERRORS = 8  # of estimates, per application, that are remembered


@dataclass(frozen=True)
class Past:
    """How far estimates of one application were off."""

    app: str
    promised: float | None = None  # accuracy expected of its newest phase; None: the network was seen since
    begun: bool = False  # whether that phase has begun: until then another way may be chosen
    ended_s: float | None = None  # when the phase was first seen to have ended
    errors: tuple[float, ...] = ()

    @property
    def correction(self) -> float:
        """Return the mean error, as if one more estimate had been right."""
        return sum(self.errors) / (len(self.errors) + 1)

    @property
    def deviation(self) -> float:
        return float(np.std(self.errors)) if self.errors else 0.0


@dataclass(frozen=True)
class Joint(Scheduling):
    """Choose ways, order and shares of all applications together; train one after another."""

    caution: Annotated[float, Ge(0), Means("standard deviations by which uncertain estimates are lowered")] = 0.0
    joule_price: Annotated[float, Ge(0), Means("accuracy times seconds that a joule must gain")] = 0.0
    horizon_s: HorizonS = None
    patience_s: PatienceS = 600.0

    wants = Wants(trials=True, observed=True, together=True, server=True)

    def allocate(self, window: Window) -> Allocation:
        """Plan anew whenever something changes; carry out the first phase."""
        apps = read_apps(window)
        past = _review(window, {one.app: one for one in kept(window).own or ()})
        corrected = [self._corrected(app, past.get(app.app, Past(app.app))) for app in apps]
        steps = plan_steps(corrected, self.horizon_s or window.window_s, self.joule_price)
        learn = np.zeros(len(apps))
        if steps.first is not None:
            learn[steps.first] = steps.share
        plan = SharePlan(learn, split_answers(corrected, 1 - steps.share), steps.chosen)
        own = tuple(
            _promise(past.get(app.app, Past(app.app)), app, k) for app, k in zip(apps, steps.chosen, strict=True)
        )
        return settle(window, apps, plan, self.patience_s, own)

    def _corrected(self, app: LearningApp, past: Past) -> LearningApp:
        """Correct the estimates by past errors, and lower them where they were uncertain."""
        by = past.correction - self.caution * past.deviation
        candidates = tuple(
            one if one.after is None else replace(one, after=known(one.after + by)) for one in app.candidates
        )
        return replace(app, candidates=candidates)


def _review(window: Window, past: Mapping[str, Past]) -> dict[str, Past]:
    """Compare what each phase promised with the next known accuracy after it."""
    reviewed = {}
    for demand in window.demands:
        one, learning = past.get(demand.app, Past(demand.app)), demand.learning
        offered = learning is not None and learning.state == "offered"
        then = None if learning is None or offered else known(learning.then)
        if then is not None:
            one = replace(one, promised=then, begun=True, ended_s=None)
        elif one.promised is not None and (one.begun or not offered):
            ended_s = window.start_s if one.ended_s is None else one.ended_s
            seen = _known_since(demand, ended_s)
            one = replace(one, begun=True, ended_s=ended_s)
            if seen is not None and one.promised is not None:
                one = Past(one.app, errors=(*one.errors, seen - one.promised)[-ERRORS:])
        reviewed[demand.app] = one
    return reviewed


def _known_since(demand: Demand, since_s: float) -> float | None:
    """Return an accuracy of predictions after a time: of a new offer, or observed."""
    if demand.learning is not None and known(demand.learning.now) is not None:
        return known(demand.learning.now)
    return known(demand.observed) if demand.observed_s is not None and demand.observed_s >= since_s else None


def _promise(past: Past, app: LearningApp, chosen: int | None) -> Past:
    if app.state != "offered" or past.begun:
        return past
    return replace(past, promised=None if chosen is None else app.candidates[chosen].after)
