"""Uniform with learning: equal inference shares for all applications, and equal training shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.plans import SharePlan, equal_inference, inference_reserve
from driftlab.platform.scheduling.sizing import ChosenConfigs, SharesAmongTrainings


@dataclass(frozen=True)
class UniformLearning(SharesAmongTrainings):
    """Uniform with learning: a fixed inference share per application, the rest equally among trainings."""

    patience_s: float = field(default=1e9, init=False)  # no training ever waits

    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        reserved, learns = (
            inference_reserve(apps, self.inference_share),
            np.array([app.learns for app in apps], np.float64),
        )
        return SharePlan((1 - reserved) * learns / max(1.0, learns.sum()), equal_inference(apps, reserved), chosen)
