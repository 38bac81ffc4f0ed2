"""RECL: the machine's time for learning goes where accuracy rises fastest.

Every training gets a share in proportion to its recent gain in accuracy; one that was seen too seldom counts as a
large gain. The zoo of expert models and the selector that ranks them lie in `zoo.py`.

Differs from the paper: it is written from the abstract, shares take the place of short periods of the whole machine,
and no learner fills the zoo yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.plans import SharePlan, answering, kept, reserve, settle
from driftlab.platform.scheduling.sizing import Ways, plan_ways

Floats = npt.NDArray[np.float64]
OBSERVED = 4  # accuracies that make a gain
OPTIMISTIC = 10.0  # gain of an application that was seen less often
LEAST = 0.01  # gain that counts at least, so that no training stands still


@dataclass(frozen=True)
class Recl(Scheduling):
    """Share the machine among trainings by the recent gain in accuracy of each."""

    answer: Annotated[float, Gt(0), Le(1), Means("share kept for each application's answers, at most half in all")] = (
        0.1
    )
    ways: Annotated[Ways, Means("way to learn: the first one, or the best for the share (Eq. 8 of ElasticDNN)")] = (
        "first"
    )
    patience_s: Annotated[float, Gt(0), Means("time after which a phase without a share gets a fair one", "s")] = 200.0

    wants = Wants(observed=True)

    def allocate(self, window: Window) -> Allocation:
        """Observe every application once per window; share by the gains whenever something changes."""
        apps = read_apps(window)
        seen = dict(kept(window).own or ())
        if window.reason == "window" or not seen:
            seen = {app.app: (*seen.get(app.app, ()), app.now)[-OBSERVED:] for app in apps}
        gains = np.array([recent_gain(seen.get(app.app, ())) for app in apps])
        plan = plan_ways(apps, self.ways, window.window_s, lambda chosen: self._plan(apps, gains, chosen))
        return settle(window, apps, plan, self.patience_s, tuple(sorted(seen.items())))

    def _plan(self, apps: Sequence[LearningApp], gains: Floats, chosen: Sequence[int | None]) -> SharePlan:
        answers = reserve(apps, self.answer)
        weights = np.where([one is not None for one in chosen], np.maximum(LEAST, gains), 0.0)
        return SharePlan((1 - answers) * weights / (weights.sum() or 1.0), answering(apps, answers), chosen)


def recent_gain(accuracies: Sequence[float]) -> float:
    """Return the newest accuracy less the mean of the two before; a large gain where too few are known."""
    if len(accuracies) < OBSERVED:
        return OPTIMISTIC
    return accuracies[-1] - (accuracies[-3] + accuracies[-2]) / 2


def share_periods(accuracy: Floats, periods: int) -> list[int]:
    """Give every training one short period of the machine, and each next one to the largest gain in its last period.

    `accuracy` is [trainings, periods + 1]: after so many periods. The first of equals comes first.
    """
    held = np.ones(len(accuracy), np.int64)
    for _ in range(periods - len(accuracy)):
        rows = np.arange(len(accuracy))
        gain = np.where(held < accuracy.shape[1] - 1, accuracy[rows, held] - accuracy[rows, held - 1], -np.inf)
        if not np.isfinite(gain).any():
            break
        held[int(gain.argmax())] += 1
    return [int(each) for each in held]
