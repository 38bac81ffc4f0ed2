"""The least cost on the grid of units, total or highest: by dynamic programming, or as a MILP for HiGHS."""

from __future__ import annotations

import numpy as np

from driftlab.errors import RunError
from driftlab.platform.scheduling.costs import Choices, Ints, Objective, UnitPlan, costs_of
from driftlab.platform.scheduling.programming import by_programming, fits, least_highest, priced

TOLERANCE = 1e-6  # of the relaxation


def solve(choices: Choices, objective: Objective) -> UnitPlan:
    """Use the fast method: only the total under a binding memory limit is an integer program."""
    plan = by_programming(choices, objective)
    if fits(choices, plan):
        return plan
    if objective == "total":
        return by_milp(choices)
    least = least_highest(choices)
    assert least is not None, "the smallest networks fit into memory, with one unit each"
    return least


def by_milp(choices: Choices) -> UnitPlan:
    """Choose one (network, units) for each application within both limits, of the lowest total.

    A relaxation and a greedy plan come first: an option is left out where its reduced cost proves that no plan with it
    is better than the greedy one.
    """
    from scipy.optimize import LinearConstraint, linprog, milp
    from scipy.sparse import coo_array

    app, network, units = options(choices)
    cost, apps = choices.cost[app, network, units], len(choices.cost)
    one_each = coo_array((np.ones(len(app)), (app, np.arange(len(app)))), shape=(apps, len(app))).tocsr()
    resources = np.stack([units / choices.units, choices.memory_bytes[app, network] / choices.limit_bytes])
    relaxed = linprog(cost, resources, np.ones(2), one_each, np.ones(apps), (0, 1))  # limits of 1 suit the tolerances
    if relaxed.x is None:
        raise RunError(f"HiGHS found no schedule for {apps} applications: {relaxed.message}")
    greedy = float(costs_of(choices, priced(choices)).sum())
    worth = relaxed.fun + relaxed.lower.marginals <= greedy + TOLERANCE
    rules = [LinearConstraint(one_each[:, worth], 1, 1), LinearConstraint(resources[:, worth], -np.inf, 1)]
    app, network, units, cost = (column[worth] for column in (app, network, units, cost))
    while True:
        found = milp(cost, integrality=np.ones(len(cost)), bounds=(0, 1), constraints=rules, options={"mip_rel_gap": 0})
        if found.x is None:
            raise RunError(f"HiGHS found no schedule for {apps} applications: {found.message}")
        chosen = np.flatnonzero(found.x > 0.5)
        plan = UnitPlan(network[chosen], units[chosen])
        if fits(choices, plan):
            return plan
        together = network == plan.networks[app]  # may exceed the limit by less than the solver's tolerance
        rules.append(LinearConstraint(together.astype(float), -np.inf, apps - 1))


def options(choices: Choices) -> tuple[Ints, Ints, Ints]:
    """List (application, network, units) that no other option dominates in cost, units and bytes."""
    order, lowest = choices.by_size
    cost = np.take_along_axis(choices.cost, order[:, :, None], axis=1)
    fewer_units = np.pad(cost, ((0, 0), (0, 0), (1, 0)), constant_values=np.inf)[:, :, :-1]
    smaller = np.pad(lowest, ((0, 0), (1, 0), (0, 0)), constant_values=np.inf)[:, :-1]
    app, place, units = np.nonzero((cost < fewer_units) & (cost < smaller))
    return app, order[app, place], units
