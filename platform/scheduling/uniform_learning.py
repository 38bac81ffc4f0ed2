"""Uniform with a share for learning: the same part of the machine for every answer, and for every training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Scheduling, Window
from driftlab.platform.scheduling.candidates import read_apps
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve, settle
from driftlab.platform.scheduling.sizing import Ways, plan_ways

PATIENCE_S = 1e9  # no training ever waits


@dataclass(frozen=True)
class UniformLearning(Scheduling):
    """Keep a share for each application's answers, and divide the rest evenly among those that learn."""

    answer: Annotated[float, Gt(0), Le(1), Means("share kept for each application's answers, at most half in all")] = (
        0.1
    )
    ways: Annotated[Ways, Means("way to learn: the first one, or the best for the share (Eq. 8 of ElasticDNN)")] = (
        "first"
    )

    def allocate(self, window: Window) -> Allocation:
        apps = read_apps(window)
        kept = reserve(apps, self.answer)
        learns = np.array([app.learns for app in apps], np.float64)
        learn, answers = (1 - kept) * learns / max(1.0, learns.sum()), answering(apps, kept)
        plan = plan_ways(apps, self.ways, window.window_s, lambda chosen: SharePlan(learn, answers, chosen))
        return settle(window, apps, plan, PATIENCE_S)
