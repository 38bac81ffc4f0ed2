"""Selection of training configurations for schedulers that do not use accuracies.

The scheduler divides shares among the chosen configurations, each application chooses the best configuration for its
share by the corrected Eq. 8 of ElasticDNN, and both steps repeat until the choice is stable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, SchedulerInput, Scheduling
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.plans import PatienceS, SharePlan, to_grants

ConfigChoice = Literal["first", "best"]
MAX_ROUNDS = 3
ChosenConfigs = Sequence[int | None]  # candidate of each application; None: no training
Planner = Callable[[ChosenConfigs], SharePlan]


@dataclass(frozen=True)
class SharesAmongTrainings(Scheduling):
    """Base of schedulers that do not use accuracies: a member plans shares for the chosen configurations."""

    inference_share: Annotated[float, Gt(0), Le(1), Means("inference share per application, at most half in total")] = (
        0.1
    )
    config_choice: Annotated[
        ConfigChoice, Means("training configuration: the first one, or the best for the share (Eq. 8 of ElasticDNN)")
    ] = "first"
    patience_s: PatienceS = 200.0

    @property
    def waits_for_all_offers(self) -> bool:
        return self.config_choice == "best"

    def initial_trials(self, configs: int) -> Sequence[int]:
        """Try every configuration if the best one is chosen."""
        return range(configs) if self.config_choice == "best" else ()

    @abstractmethod
    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        """Divide the processor among the trainings of the chosen candidates."""

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Compute a new plan at every call."""
        apps = read_apps(window)
        plan = plan_configs(apps, self.config_choice, window.window_s, lambda chosen: self.plan(apps, chosen))
        return to_grants(window, apps, plan, self.patience_s)


def plan_configs(apps: Sequence[LearningApp], choice: ConfigChoice, window_s: float, planner: Planner) -> SharePlan:
    """Plan for the first configuration of every application, or for the best one at its share."""
    chosen: tuple[int | None, ...] = tuple(0 if app.learns else None for app in apps)
    plan = planner(chosen)
    for _ in range(MAX_ROUNDS if choice == "best" else 0):
        better = tuple(best_config(app, float(share), window_s) for app, share in zip(apps, plan.training, strict=True))
        if better == chosen:
            break
        chosen, plan = better, planner(better)
    return plan


def best_config(app: LearningApp, share: float, window_s: float) -> int | None:
    """Return the candidate of the best mean accuracy over the window (Eq. 8); of equals, the first."""
    if not app.learns or app.lacks_estimates or not share:
        return 0 if app.learns else None
    before, after, seconds = (
        np.array(column)
        for column in zip(
            *((one.accuracy_before, one.accuracy_after, one.seconds) for one in app.candidates), strict=True
        )
    )
    ends_s: npt.NDArray[np.float64] = np.minimum(seconds / share, window_s)
    return int((before * ends_s + after * (window_s - ends_s)).argmax())
