"""How a scheduler that knows nothing of accuracies is combined with ways of several sizes.

The scheduler decides shares for the chosen ways, each application chooses the best way for its share by the corrected
Eq. 8 of ElasticDNN, and so on until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.plans import SharePlan

Ways = Literal["first", "best"]
ROUNDS = 3
Planner = Callable[[Sequence[int | None]], SharePlan]  # from the chosen candidates to shares


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
