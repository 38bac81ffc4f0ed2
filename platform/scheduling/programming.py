"""Dynamic programming over the units: exact where memory is no limit, and for the highest cost also where it is.

For the total within memory, a price per byte replaces the limit: the best plan at a price is the best of all plans that
need no more memory, and the price is searched at which that plan just fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from driftlab.platform.scheduling.costs import Choices, Floats, Ints, Objective, UnitPlan, costs_of, memory_of
from driftlab.platform.scheduling.greedy import MIN_GAIN, exchange, grow, smallest

JOIN: Mapping[Objective, np.ufunc] = {"total": np.add, "max": np.maximum}
DECADES = (-6.0, 12.0)  # range of the price of all memory, in accuracy: powers of ten
PRICES = 16  # prices to try
DEARER = 0.01  # increase of the price from one application to the next, as a share of it


def by_programming(choices: Choices, objective: Objective) -> UnitPlan:
    """Find the lowest total or the lowest maximum where memory is no limit."""
    return _on(choices.cost, divide(choices.cost.min(axis=1), JOIN[objective])[0])


def least_highest(choices: Choices, below: float = np.inf) -> UnitPlan | None:
    """Minimise the highest cost within units and memory, on the smallest networks that achieve it.

    The optimum is one of the occurring costs: bisect them. None where no highest cost is below the bound.
    """
    cost = choices.cost
    bounds = np.unique(cost[(cost >= cost.min(axis=(1, 2)).max()) & (cost < below)])
    best = _within(choices, bounds[-1]) if len(bounds) else None
    low, high = 0, len(bounds) - 1
    while best is not None and low < high:
        middle = (low + high) // 2
        plan = _within(choices, bounds[middle])
        low, high = (middle + 1, high) if plan is None else (low, middle)
        best = plan or best
    return best


def priced(choices: Choices) -> UnitPlan:
    """Find a low total within units and memory: exact where memory is slack, else at most that of `lookahead`."""
    plan = by_programming(choices, "total")
    if fits(choices, plan):
        return plan
    best, low, high = smallest(choices), *DECADES
    for _ in range(PRICES):
        middle = (low + high) / 2
        found = _at(choices, 10**middle)
        if fits(choices, found):
            best, high = found, middle
        else:
            low = middle
    *_, ahead = grow(choices, "lookahead", smallest(choices))
    plans = [exchange(choices, plan) for plan in (best, ahead.plan)]
    return min(plans, key=lambda plan: float(costs_of(choices, plan).sum()))


def exchange_alike(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Replace the plan of three or more equal applications by a cheaper one that programming finds.

    One of them may gain by units from all the others, where no two gain by dividing anew.
    """
    if len(choices.cost) < 3 or (choices.cost != choices.cost[:1]).any():
        return plan
    other = priced(choices)
    return other if costs_of(choices, other).sum() < costs_of(choices, plan).sum() - MIN_GAIN else plan


def levelled(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Restart from the lowest maximum where a walk ended above it, which happens only where memory binds."""
    if fits(choices, replace(plan, networks=_largest(choices))):
        return plan
    best = least_highest(choices, float(costs_of(choices, plan).max()) - MIN_GAIN)
    if best is None:
        return plan
    *_, better = grow(choices, "highest", best)
    return better.plan


def fits(choices: Choices, plan: UnitPlan) -> bool:
    """Tell whether a plan keeps within memory."""
    return bool(memory_of(choices, plan).sum() <= choices.limit_bytes)


def divide(lowest: Floats, join: np.ufunc) -> tuple[Ints, float]:
    """Divide the units: f_v(k) is the least of f_{v-1}(k - j) and B_v(j), joined, over all j."""
    size = lowest.shape[1]
    rest = np.subtract.outer(np.arange(size), np.arange(size))  # [k, j]: left for the others when j of k go to v
    beyond = rest < 0
    best = np.where(np.arange(size) == 0, 0.0 if join is np.add else -np.inf, np.inf)
    taken: list[Ints] = []
    for of_app in lowest:
        joined = np.where(beyond, np.inf, join(best[rest], of_app))
        taken.append(joined.argmin(axis=1))
        best = joined[np.arange(size), taken[-1]]
    spent = int(best.argmin())
    least, units = float(best[spent]), []
    for of_app in reversed(taken):
        units.append(int(of_app[spent]))
        spent -= units[-1]
    return np.array(units[::-1], np.int64), least


def _within(choices: Choices, bound: float) -> UnitPlan | None:
    """Return the plan of least memory with no cost above a bound; None where it does not fit."""
    held = np.where(choices.cost <= bound, choices.memory_bytes[:, :, None], np.inf)
    least = held.min(axis=1)
    if least.min(axis=1).sum() > choices.limit_bytes:
        return None
    units, held_bytes = divide(least, np.add)
    return _on(held, units) if held_bytes <= choices.limit_bytes else None


def _at(choices: Choices, price: float) -> UnitPlan:
    """Find the lowest total at a price per byte, slightly higher for each next application.

    At one price for all, equal applications would change their networks at the same price.
    """
    prices = price * (1 + DEARER * np.arange(len(choices.cost))) / choices.limit_bytes
    cost = choices.cost + (prices[:, None] * choices.memory_bytes)[:, :, None]
    return _on(cost, divide(cost.min(axis=1), np.add)[0])


def _on(values: Floats, units: Ints) -> UnitPlan:
    """Choose the network of least value on the units that each application has."""
    return UnitPlan(values[np.arange(len(units)), :, units].argmin(axis=1), units)


def _largest(choices: Choices) -> Ints:
    found: Ints = np.where(np.isfinite(choices.memory_bytes), choices.memory_bytes, -1.0).argmax(axis=1)
    return found
