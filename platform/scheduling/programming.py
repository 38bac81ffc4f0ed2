"""Dynamic programming over the units, exact without a memory limit.

For the highest cost it is exact with a memory limit too. For the total within memory, a price per byte replaces the
limit (Lagrangian relaxation): the best plan at a price is the best of all plans that use no more memory, and the price
is searched at which that plan just fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from driftlab.platform.scheduling.costs import Choices, Floats, Ints, Objective, UnitPlan, costs_of, memory_of
from driftlab.platform.scheduling.greedy import MIN_GAIN, allocate_units, exchange, smallest_plan

JOIN: Mapping[Objective, np.ufunc] = {"total": np.add, "max": np.maximum}
DECADES = (-6.0, 12.0)  # range of the price of the full memory, in accuracy: powers of ten
PRICES = 16  # steps of the search
PRICE_STEP = 0.01  # increase of the price from one application to the next, relative


def by_programming(choices: Choices, objective: Objective) -> UnitPlan:
    """Return the plan of the lowest total or the lowest maximum without a memory limit."""
    return _on(choices.cost, divide(choices.cost.min(axis=1), JOIN[objective])[0])


def least_highest(choices: Choices, below: float = np.inf) -> UnitPlan | None:
    """Return the plan of the lowest maximum within units and memory, on the smallest such networks.

    The optimum is one of the occurring costs, which are bisected. None if no plan has a maximum below the bound.
    """
    cost = choices.cost
    bounds = np.unique(cost[(cost >= cost.min(axis=(1, 2)).max()) & (cost < below)])
    best = _plan_below(choices, bounds[-1]) if len(bounds) else None
    low, high = 0, len(bounds) - 1
    while best is not None and low < high:
        middle = (low + high) // 2
        plan = _plan_below(choices, bounds[middle])
        low, high = (middle + 1, high) if plan is None else (low, middle)
        best = plan or best
    return best


def priced(choices: Choices, start: UnitPlan | None = None) -> UnitPlan:
    """Return a plan of a low total: exact if memory is slack, else at most that of a start.

    Without a start it is the plan of `lookahead`."""
    plan = by_programming(choices, "total")
    if fits(choices, plan):
        return plan
    best, low, high = start or smallest_plan(choices), *DECADES
    for _ in range(PRICES):
        middle = (low + high) / 2
        plan = _plan_at_price(choices, 10**middle)
        if fits(choices, plan):
            best, high = plan, middle
        else:
            low = middle
    if start is None:
        *_, ahead = allocate_units(choices, "lookahead", smallest_plan(choices))
        start = ahead.plan
    plans = [exchange(choices, plan) for plan in (best, start)]
    return min(plans, key=lambda plan: float(costs_of(choices, plan).sum()))


def exchange_alike(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Return a cheaper plan of three or more equal applications if dynamic programming finds one.

    One application may gain by units of all the others where no pair gains by an exchange.
    """
    if len(choices.cost) < 3 or (choices.cost != choices.cost[:1]).any():
        return plan
    other = priced(choices)
    return other if costs_of(choices, other).sum() < costs_of(choices, plan).sum() - MIN_GAIN else plan


def levelled(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Return a plan of the lowest maximum and, under this bound, of a low total.

    The greedy plan that it begins with may have neither."""
    if not fits(choices, replace(plan, networks=_largest(choices))):
        plan = least_highest(choices, float(costs_of(choices, plan).max()) - MIN_GAIN) or plan
    return priced(bounded(choices, plan), plan)


def bounded(choices: Choices, plan: UnitPlan) -> Choices:
    """Return the choices whose cost is at most the highest one of a plan."""
    below = choices.cost <= costs_of(choices, plan).max() + MIN_GAIN
    return replace(choices, cost=np.where(below, choices.cost, np.inf))


def fits(choices: Choices, plan: UnitPlan) -> bool:
    """Return whether the networks of a plan fit into memory."""
    return bool(memory_of(choices, plan).sum() <= choices.limit_bytes)


def divide(lowest: Floats, join: np.ufunc) -> tuple[Ints, float]:
    """Divide the units optimally: f_v(k) is the minimum over j of f_{v-1}(k - j) joined with B_v(j)."""
    size = lowest.shape[1]
    rest = np.subtract.outer(
        np.arange(size), np.arange(size)
    )  # [k, j]: units of the other applications if v receives j of k
    beyond = rest < 0
    best = np.where(np.arange(size) == 0, 0.0 if join is np.add else -np.inf, np.inf)
    chosen: list[Ints] = []
    for of_app in lowest:
        joined = np.where(beyond, np.inf, join(best[rest], of_app))
        chosen.append(joined.argmin(axis=1))
        best = joined[np.arange(size), chosen[-1]]
    spent = int(best.argmin())
    least, units = float(best[spent]), []
    for of_app in reversed(chosen):
        units.append(int(of_app[spent]))
        spent -= units[-1]
    return np.array(units[::-1], np.int64), least


def _plan_below(choices: Choices, bound: float) -> UnitPlan | None:
    """Return the plan of the least memory with no cost above a bound; None if it does not fit."""
    used = np.where(choices.cost <= bound, choices.memory_bytes[:, :, None], np.inf)
    least = used.min(axis=1)
    if least.min(axis=1).sum() > choices.limit_bytes:
        return None
    units, used_bytes = divide(least, np.add)
    return _on(used, units) if used_bytes <= choices.limit_bytes else None


def _plan_at_price(choices: Choices, price: float) -> UnitPlan:
    """Return the plan of the lowest total at a price per byte.

    The price rises slightly from application to application: with a single one, equal applications would all change
    their networks at the same price.
    """
    prices = price * (1 + PRICE_STEP * np.arange(len(choices.cost))) / choices.limit_bytes
    cost = choices.cost + (prices[:, None] * choices.memory_bytes)[:, :, None]
    return _on(cost, divide(cost.min(axis=1), np.add)[0])


def _on(values: Floats, units: Ints) -> UnitPlan:
    """Return the plan with the network of the least value at each application's units."""
    return UnitPlan(values[np.arange(len(units)), :, units].argmin(axis=1), units)


def _largest(choices: Choices) -> Ints:
    largest: Ints = np.where(np.isfinite(choices.memory_bytes), choices.memory_bytes, -1.0).argmax(axis=1)
    return largest
