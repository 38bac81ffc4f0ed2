"""Joint: which applications learn, in which way, in which order and on which share, all decided together.

Estimates are corrected by how far earlier ones were off, and lowered by their uncertainty where that is asked for. The
best sequence of trainings is found by `sequencing.py`. It is planned anew whenever something changes, so only its first
phase is ever carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Demand, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, known, read_apps
from driftlab.platform.scheduling.plans import SharePlan, kept, settle
from driftlab.platform.scheduling.sequencing import plan_steps, split_answers

ERRORS = 8  # of estimates, per application, that are remembered


@dataclass(frozen=True)
class Past:
    """How far estimates of one application were off."""

    app: str
    promised: float | None = None  # accuracy expected of the phase that runs
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
    horizon_s: Annotated[
        float | None, Gt(0), Means("time over which a plan is judged; none: until the window ends", "s")
    ] = None
    patience_s: Annotated[float, Gt(0), Means("time after which a phase without a share gets a fair one", "s")] = 600.0

    wants = Wants(trials=True, together=True)

    def allocate(self, window: Window) -> Allocation:
        """Plan anew whenever something changes; carry out the first phase."""
        apps = read_apps(window)
        past = _review(window.demands, {one.app: one for one in kept(window).own or ()})
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


def _review(demands: Sequence[Demand], past: Mapping[str, Past]) -> dict[str, Past]:
    """Compare what was promised with what is observed after the phase."""
    reviewed = {}
    for demand in demands:
        one, seen = past.get(demand.app, Past(demand.app)), known(demand.observed)
        if one.promised is not None and demand.learning is None and seen is not None:
            one = Past(one.app, None, (*one.errors, seen - one.promised)[-ERRORS:])
        reviewed[demand.app] = one
    return reviewed


def _promise(past: Past, app: LearningApp, chosen: int | None) -> Past:
    if app.state != "offered":
        return past
    return replace(past, promised=None if chosen is None else app.candidates[chosen].after)
