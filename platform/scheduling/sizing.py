"""How a scheduler that knows nothing of accuracies is combined with ways of several sizes.

The scheduler decides shares for the chosen ways, each application chooses the best way for its share by the corrected
Eq. 8 of ElasticDNN, and so on until nothing changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.plans import PatienceS, SharePlan, settle

Ways = Literal["first", "best"]
ROUNDS = 3
Chosen = Sequence[int | None]  # candidate of each application; None: it does not learn
Planner = Callable[[Chosen], SharePlan]


@dataclass(frozen=True)
class SharesAmongTrainings(Scheduling):
    """Base of schedulers that know nothing of accuracies: one plans the shares of trainings for the chosen ways."""

    answer: Annotated[float, Gt(0), Le(1), Means("share kept for each application's answers, at most half in all")] = (
        0.1
    )
    ways: Annotated[Ways, Means("way to learn: the first one, or the best for the share (Eq. 8 of ElasticDNN)")] = (
        "first"
    )
    patience_s: PatienceS = 200.0

    @property
    def asks(self) -> Wants:
        """Return what the member wants: to choose the best of several ways, it wants them tried out."""
        return replace(self.wants, trials=True, together=True) if self.ways == "best" else self.wants

    @abstractmethod
    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        """Divide the machine among the trainings of the chosen candidates."""

    def allocate(self, window: Window) -> Allocation:
        """Plan anew whenever something changes."""
        apps = read_apps(window)
        plan = plan_ways(apps, self.ways, window.window_s, lambda chosen: self.plan(apps, chosen))
        return settle(window, apps, plan, self.patience_s)


def plan_ways(apps: Sequence[LearningApp], ways: Ways, window_s: float, planner: Planner) -> SharePlan:
    """Plan for the first way of every application, or for the best one at its share."""
    chosen: tuple[int | None, ...] = tuple(0 if app.learns else None for app in apps)
    plan = planner(chosen)
    for _ in range(ROUNDS if ways == "best" else 0):
        better = tuple(best_way(app, float(share), window_s) for app, share in zip(apps, plan.learn, strict=True))
        if better == chosen:
            break
        chosen, plan = better, planner(better)
    return plan


def best_way(app: LearningApp, share: float, window_s: float) -> int | None:
    """Return the candidate of the best mean accuracy over the window, the first of equals."""
    if not app.learns or app.untold or not share:
        return 0 if app.learns else None
    before, after, seconds = (
        np.array(column)
        for column in zip(*((one.before, one.after, one.seconds) for one in app.candidates), strict=True)
    )
    ends: npt.NDArray[np.float64] = np.minimum(seconds / share, window_s)
    return int((before * ends + after * (window_s - ends)).argmax())
