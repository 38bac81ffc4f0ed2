"""The best sequence of trainings by enumeration of orders, configurations and training shares.

It is the bound of `sequencing.py`, which assumes that gains add up and searches orders locally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.inference_shares import best_totals
from driftlab.platform.scheduling.sequencing import PlannedSteps

POINTS = {1: 100, 2: 40, 3: 10}  # training shares of each phase that are tried at most, by the number of trainings
ROUNDING = 1e-9
FEWEST = 5  # of more trainings


@dataclass
class Enumeration:
    """The best continuation from any set of finished trainings."""

    apps: Sequence[LearningApp]
    joule_price: float = 0.0

    def __post_init__(self) -> None:
        self.totals: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        self.start = tuple(app.now for app in self.apps)

    def rates(self, now: tuple[float, ...]) -> list[tuple[float, float]]:
        """Return training shares, from none on, with the accuracy per second that inference has then.

        Only the largest share of each level is useful. All levels are returned, or evenly spaced ones if they are many.
        """
        if now not in self.totals:
            totals = best_totals(self.apps, now)
            levels = np.flatnonzero(totals > np.append(-np.inf, totals[:-1]) + ROUNDING)[::-1]
            most = POINTS.get(sum(app.learns for app in self.apps), FEWEST)
            levels = levels[np.unique(np.linspace(0, len(levels) - 1, most + 1).round().astype(int))]
            shares = 1 - levels / (len(totals) - 1)
            self.totals[now] = list(zip(shares.tolist(), totals[levels].tolist(), strict=True))
        return self.totals[now]

    def best(self, now: tuple[float, ...], left: frozenset[int], left_s: float) -> tuple[float, PlannedSteps]:
        """Return the accuracy × seconds of the best continuation, and its plan."""
        nothing = PlannedSteps(None, 0.0, (None,) * len(self.apps))
        found = self.rates(now)[0][1] * left_s, nothing
        for i in sorted(left):
            for k, one in enumerate(self.apps[i].candidates):
                if one.accuracy_after is None:
                    continue
                during = (*now[:i], one.accuracy_before, *now[i + 1 :])
                after = (*now[:i], one.accuracy_after, *now[i + 1 :])
                for share, rate in self.rates(during):
                    if share * left_s < one.seconds or not share:
                        continue
                    passed_s = one.seconds / share
                    rest, plan = self.best(after, left - {i}, left_s - passed_s)
                    score = rate * passed_s + rest - self.joule_price * one.joules
                    if score > found[0] + ROUNDING:
                        chosen = (*plan.chosen[:i], k, *plan.chosen[i + 1 :])
                        found = score, PlannedSteps(i, share, chosen)
        return found


def plan_enumerated(apps: Sequence[LearningApp], window_s: float, joule_price: float = 0.0) -> PlannedSteps:
    """Return the first phase of the best sequence on the grid."""
    if not apps:
        return PlannedSteps(None, 0.0, ())
    given = Enumeration(apps, joule_price)
    score, plan = given.best(given.start, frozenset(i for i, app in enumerate(apps) if app.learns), window_s)
    idle = given.rates(given.start)[0][1] * window_s
    return PlannedSteps(plan.first, plan.share, plan.chosen, score - idle)
