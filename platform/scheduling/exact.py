"""Exact: the schedule of least cost on the grid of units, as the bound that every heuristic is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Scheduling, Window
from driftlab.platform.scheduling.costs import tabulate
from driftlab.platform.scheduling.greedy import Walk, spread
from driftlab.platform.scheduling.optimum import solve
from driftlab.platform.scheduling.programming import Objective


@dataclass(frozen=True)
class Exact(Scheduling):
    """Solve NestDNN's problem to the end: by dynamic programming, or the total as a MILP where memory binds."""

    objective: Annotated[
        Objective, Means("the cost that is lowered: of all applications together, or the highest one")
    ] = "total"
    alpha: Annotated[float, Ge(0), Le(1), Means("weight of a second of lateness against all of the accuracy")] = 0.1
    units: Annotated[int, Ge(1), Means("parts into which the machine is divided")] = 100

    wants = EACH_WINDOW

    def allocate(self, window: Window) -> Allocation:
        who, notes = admit(window, self.units)
        if not who:
            return allocation(window, [], notes)
        choices = tabulate([window.demands[i] for i in who], window.memory_bytes, self.alpha, self.units)
        walk = Walk(choices, spread(choices, solve(choices, self.objective)))
        walk.choose()  # the lowest highest cost leaves it open what all others run
        plan = walk.plan
        shares = (plan.units / self.units).tolist()
        return allocation(window, list(zip(who, plan.networks.tolist(), shares, strict=True)), notes)
