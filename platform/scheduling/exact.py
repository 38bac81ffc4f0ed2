"""Exact: the schedule of least cost on the grid of units, the bound for every heuristic."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Scheduling, Window
from driftlab.platform.scheduling.costs import LatenessWeight, LoweredCost, MachineUnits, tabulate
from driftlab.platform.scheduling.greedy import Walk, spread
from driftlab.platform.scheduling.optimum import solve


@dataclass(frozen=True)
class Exact(Scheduling):
    """Solve NestDNN's problem exactly: by dynamic programming, or the total as a MILP where memory binds."""

    objective: LoweredCost = "total"
    alpha: LatenessWeight = 0.1
    units: MachineUnits = 100

    wants = EACH_WINDOW

    def allocate(self, window: Window) -> Allocation:
        admitted, notes = admit(window, self.units)
        if not admitted:
            return allocation(window, [], notes)
        choices = tabulate([window.demands[i] for i in admitted], window.memory_bytes, self.alpha, self.units)
        walk = Walk(choices, spread(choices, solve(choices, self.objective)))
        walk.choose()  # the minimal highest cost leaves the other applications' networks open
        plan = walk.plan
        shares = (plan.units / self.units).tolist()
        return allocation(window, list(zip(admitted, plan.networks.tolist(), shares, strict=True)), notes)
