"""Uniform with a share for learning: the same part of the machine for every answer, and for every training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings


@dataclass(frozen=True)
class UniformLearning(SharesAmongTrainings):
    """Keep a share for each application's answers, and divide the rest evenly among those that learn."""

    patience_s: float = field(default=1e9, init=False)  # no training ever waits

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        answers, learns = reserve(apps, self.answer), np.array([app.learns for app in apps], np.float64)
        return SharePlan((1 - answers) * learns / max(1.0, learns.sum()), answering(apps, answers), chosen)
