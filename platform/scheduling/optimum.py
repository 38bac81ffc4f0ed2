"""The least cost there is on the grid of units, total or highest: by dynamic programming, and as a MILP for HiGHS."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from driftlab.errors import RunError
from driftlab.platform.scheduling.costs import Choices, Ints, Plan, costs_of, memory_of
from driftlab.platform.scheduling.greedy import exchange, grow, smallest

Objective = Literal["total", "max"]
TOLERANCE = 1e-6  # of the relaxation


def solve(choices: Choices, objective: Objective) -> Plan:
    """Take the way that is quick: without a limit that binds, applications share nothing but the units."""
    plan = by_programming(choices, objective)
    return plan if memory_of(choices, plan).sum() <= choices.limit_bytes else by_milp(choices, objective)


def by_programming(choices: Choices, objective: Objective) -> Plan:
    """Share the units when memory is no limit: f_v(k) is the least of f_{v-1}(k - j) and B_v(j), joined, over all j."""
    join = np.add if objective == "total" else np.maximum
    size = choices.units + 1
    rest = np.subtract.outer(np.arange(size), np.arange(size))  # [k, j]: what others keep when j of k units go to v
    best = np.where(np.arange(size) == 0, 0.0 if objective == "total" else -np.inf, np.inf)
    taken: list[Ints] = []
    for lowest in choices.cost.min(axis=1):
        joined = np.where(rest < 0, np.inf, join(best[rest], lowest))
        taken.append(joined.argmin(axis=1))
        best = joined[np.arange(size), taken[-1]]
    return _traced(choices, taken, int(best.argmin()))


def _traced(choices: Choices, taken: list[Ints], spent: int) -> Plan:
    units = []
    for of_app in reversed(taken):
        units.append(int(of_app[spent]))
        spent -= units[-1]
    given = np.array(units[::-1], np.int64)
    return Plan(choices.cost[np.arange(len(given)), :, given].argmin(axis=1), given)


def by_milp(choices: Choices, objective: Objective) -> Plan:
    """Choose one (network, units) for each application within both limits; a last variable bounds the highest cost.

    The relaxation and a greedy plan come first: an option is left out where its reduced cost shows that with it nothing
    can be better than that plan.
    """
    from scipy.optimize import Bounds, LinearConstraint, linprog, milp

    app, network, units = options(choices)
    goal, one_each, limits, most = _programme(choices, objective, (app, network, units))
    low, high = np.zeros(len(goal)), np.ones(len(goal))
    low[-1], high[-1] = (0, 0) if objective == "total" else (-np.inf, np.inf)
    relaxed = linprog(goal, limits, most, one_each, np.ones(len(choices.cost)), np.stack([low, high], axis=1))
    if relaxed.x is None:
        raise RunError(f"HiGHS found no schedule for {len(choices.cost)} applications: {relaxed.message}")
    worth = relaxed.fun + relaxed.lower.marginals <= _greedy_cost(choices, objective) + TOLERANCE
    worth[-1] = True
    rules = [LinearConstraint(one_each[:, worth], 1, 1), LinearConstraint(limits[:, worth], -np.inf, most)]
    bounds, whole = Bounds(low[worth], high[worth]), np.append(np.ones(worth.sum() - 1), 0)
    app, network, units = (column[worth[:-1]] for column in (app, network, units))
    while True:
        found = milp(goal[worth], integrality=whole, bounds=bounds, constraints=rules, options={"mip_rel_gap": 0})
        if found.x is None:
            raise RunError(f"HiGHS found no schedule for {len(choices.cost)} applications: {found.message}")
        chosen = np.flatnonzero(found.x[:-1] > 0.5)
        plan = Plan(network[chosen], units[chosen])
        if memory_of(choices, plan).sum() <= choices.limit_bytes:
            return plan
        together = np.append(network == plan.networks[app], False)  # too much, by less than the solver's tolerance
        rules.append(LinearConstraint(together.astype(float), -np.inf, len(choices.cost) - 1))


def _programme(choices: Choices, objective: Objective, columns: tuple[Ints, Ints, Ints]) -> tuple[Any, Any, Any, Any]:
    """Write the goal, the rows that choose one option each, and the limits on units, memory and the highest cost."""
    from scipy.sparse import coo_array, csr_array, vstack

    app, network, units = columns
    cost = choices.cost[app, network, units]
    apps, count = len(choices.cost), len(cost)
    every, shape = np.arange(count), (apps, count + 1)
    one_each = coo_array((np.ones(count), (app, every)), shape=shape).tocsr()
    resources = np.zeros((2, count + 1))  # both limits are 1, as the solver's tolerances expect
    resources[:, :count] = units / choices.units, choices.memory_bytes[app, network] / choices.limit_bytes
    if objective == "total":
        return np.append(cost, 0.0), one_each, csr_array(resources), np.ones(2)
    places = (np.append(app, np.arange(apps)), np.append(every, np.full(apps, count)))
    below = coo_array((np.append(cost, -np.ones(apps)), places), shape=shape)
    limits = vstack([csr_array(resources), below], format="csr")
    return np.append(np.zeros(count), 1.0), one_each, limits, np.append(np.ones(2), np.zeros(apps))


def _greedy_cost(choices: Choices, objective: Objective) -> float:
    """Tell what a greedy plan costs: no optimum costs more."""
    *_, plan = grow(choices, "lookahead" if objective == "total" else "highest", smallest(choices))
    if objective == "total":
        return float(costs_of(choices, exchange(choices, plan)).sum())
    return float(costs_of(choices, plan).max())


def options(choices: Choices) -> tuple[Ints, Ints, Ints]:
    """List (application, network, units) where no other option has as low a cost with as few units and bytes."""
    order, lowest = choices.by_size
    cost = np.take_along_axis(choices.cost, order[:, :, None], axis=1)
    fewer_units = np.pad(cost, ((0, 0), (0, 0), (1, 0)), constant_values=np.inf)[:, :, :-1]
    smaller = np.pad(lowest, ((0, 0), (1, 0), (0, 0)), constant_values=np.inf)[:, :-1]
    app, place, units = np.nonzero((cost < fewer_units) & (cost < smaller))
    return app, order[app, place], units
