"""Exact: the schedule of the lowest cost on the grid of units, the bound of every heuristic.

NestDNN's problem (Eq. 3 and 4) by dynamic programming, or as a mixed-integer linear program (MILP) solved by HiGHS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftlab.errors import RunError
from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, SchedulerInput, Scheduling
from driftlab.platform.scheduling.costs import (
    Choices,
    Ints,
    LatenessWeight,
    LoweredCost,
    MachineUnits,
    Objective,
    UnitPlan,
    costs_of,
    tabulate,
)
from driftlab.platform.scheduling.greedy import GreedyAllocation, allocate_surplus
from driftlab.platform.scheduling.programming import bounded, by_programming, fits, least_highest, priced

TOLERANCE = 1e-6  # of the relaxation


@dataclass(frozen=True)
class Exact(Scheduling):
    """Optimal NestDNN schedule: dynamic programming, or a MILP (HiGHS) under a binding memory limit."""

    objective: LoweredCost = "total"
    alpha: LatenessWeight = 0.1
    units: MachineUnits = 100

    version, triggers = 2, WINDOW_ONLY

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Solve the window's problem; the state is empty."""
        admitted, notes = admit(window, self.units)
        if not admitted:
            return allocation(window, [], notes)
        choices = tabulate([window.demands[i] for i in admitted], window.memory_bytes, self.alpha, self.units)
        walk = GreedyAllocation(choices, allocate_surplus(choices, solve(choices, self.objective)))
        walk.select_networks()  # surplus units may permit other networks
        plan = walk.plan
        shares = (plan.units / self.units).tolist()
        return allocation(window, list(zip(admitted, plan.networks.tolist(), shares, strict=True)), notes)


def solve(choices: Choices, objective: Objective, start: UnitPlan | None = None) -> UnitPlan:
    """Return an optimal plan; of those with the lowest maximum, one with the lowest total.

    Only a total under a binding memory limit needs the MILP, which may begin from a plan.
    """
    plan = by_programming(choices, objective)
    if objective == "total":
        return plan if fits(choices, plan) else by_milp(choices, start)
    least = plan if fits(choices, plan) else least_highest(choices)
    assert least is not None, "the smallest networks fit into memory, with one unit each"
    return solve(bounded(choices, least), "total", least)


def by_milp(choices: Choices, start: UnitPlan | None = None) -> UnitPlan:
    """Return the plan of the lowest total within both limits: one (network, units) per application.

    A relaxation and a greedy plan come first: an option is excluded if its reduced cost proves that no plan with it is
    better than the greedy one.
    """
    from scipy.optimize import LinearConstraint, linprog, milp
    from scipy.sparse import coo_array

    app, network, units = options(choices)
    cost, apps = choices.cost[app, network, units], len(choices.cost)
    one_each = coo_array((np.ones(len(app)), (app, np.arange(len(app)))), shape=(apps, len(app))).tocsr()
    resources = np.stack([units / choices.units, choices.memory_bytes[app, network] / choices.limit_bytes])
    relaxed = linprog(cost, resources, np.ones(2), one_each, np.ones(apps), (0, 1))  # limits of 1 match the tolerances
    if relaxed.x is None:
        raise RunError(f"HiGHS found no schedule for {apps} applications: {relaxed.message}")
    greedy = float(costs_of(choices, priced(choices, start)).sum())
    useful = relaxed.fun + relaxed.lower.marginals <= greedy + TOLERANCE
    rules = [LinearConstraint(one_each[:, useful], 1, 1), LinearConstraint(resources[:, useful], -np.inf, 1)]
    app, network, units, cost = (column[useful] for column in (app, network, units, cost))
    while True:
        solution = milp(
            cost, integrality=np.ones(len(cost)), bounds=(0, 1), constraints=rules, options={"mip_rel_gap": 0}
        )
        if solution.x is None:
            raise RunError(f"HiGHS found no schedule for {apps} applications: {solution.message}")
        chosen = np.flatnonzero(solution.x > 0.5)
        plan = UnitPlan(network[chosen], units[chosen])
        if fits(choices, plan):
            return plan
        chosen_networks = network == plan.networks[app]  # exceed the limit by less than the solver's tolerance
        rules.append(LinearConstraint(chosen_networks.astype(float), -np.inf, apps - 1))


def options(choices: Choices) -> tuple[Ints, Ints, Ints]:
    """Return the (application, network, units) that no other option dominates in cost, units and bytes."""
    order, lowest = choices.by_size
    cost = np.take_along_axis(choices.cost, order[:, :, None], axis=1)
    fewer_units = np.pad(cost, ((0, 0), (0, 0), (1, 0)), constant_values=np.inf)[:, :, :-1]
    smaller = np.pad(lowest, ((0, 0), (1, 0), (0, 0)), constant_values=np.inf)[:, :-1]
    app, place, units = np.nonzero((cost < fewer_units) & (cost < smaller))
    return app, order[app, place], units
