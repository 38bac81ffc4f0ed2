"""RECL: the machine's time for learning goes where accuracy rises fastest.

Every training gets a share in proportion to its recent gain in accuracy; one that was seen too seldom counts as a
large gain. Every training begins from the best of the networks that its learner has stored, which a selector ranks
(`zoo.py`).

Differs from the paper: it is written from the abstract, shares take the place of short periods of the whole machine,
and applications store networks each for itself, since theirs have other classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftlab.platform.scheduling.base import Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings

OBSERVED = 4  # accuracies that make a gain
OPTIMISTIC = 10.0  # gain of an application that was seen less often
LEAST = 0.01  # gain that counts at least, so that no training stands still


@dataclass(frozen=True)
class Recl(SharesAmongTrainings):
    """Share the machine among trainings by the recent gain in accuracy of each."""

    wants = Wants(observed=True, recall=-1.0)

    def observe(self, window: Window, apps: Sequence[LearningApp], own: Any) -> Any:
        """Note every application's accuracy once per window."""
        seen = dict(own or ())
        if window.reason == "window" or not seen:
            seen = {app.app: (*seen.get(app.app, ()), app.now)[-OBSERVED:] for app in apps}
        return tuple(sorted(seen.items()))

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen, own: Any = None) -> SharePlan:
        answers, seen = reserve(apps, self.answer), dict(own or ())
        gains = np.array([recent_gain(seen.get(app.app, ())) for app in apps])
        weights = np.where([one is not None for one in chosen], np.maximum(LEAST, gains), 0.0)
        return SharePlan((1 - answers) * weights / (weights.sum() or 1.0), answering(apps, answers), chosen)


def recent_gain(accuracies: Sequence[float]) -> float:
    """Return the newest accuracy less the mean of the two before; a large gain where too few are known."""
    if len(accuracies) < OBSERVED:
        return OPTIMISTIC
    return accuracies[-1] - (accuracies[-3] + accuracies[-2]) / 2
