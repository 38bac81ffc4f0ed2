"""NestDNN's greedy heuristic: allocate units Δu step by step, and re-select the receiver's network.

A network can be selected while all networks together fit into memory (the limits of Eq. 3 and 4). An allocation depends
only on its start, so that it can be interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from driftlab.platform.scheduling.costs import Choices, Floats, Ints, UnitPlan, costs_of, memory_of

MIN_GAIN = 1e-12  # a smaller change of cost is rounding
Step = tuple[int, int]  # an application, and the number of units that it receives
Block = tuple[float, int, int, int]  # gain per unit, minus allocated units, minus the application, units: highest wins
ROUNDS = 5  # of exchange; two are nearly always enough


class GreedyAllocation:
    """A plan in progress, with each application's lowest cost at every number of units."""

    def __init__(self, choices: Choices, plan: UnitPlan) -> None:
        self.choices = choices
        self.networks, self.units = plan.networks.copy(), plan.units.copy()
        self.left = choices.units - int(self.units.sum())
        self.apps, self.counts = np.arange(len(self.units)), np.arange(1, choices.units + 1)
        self.blocks: dict[int, Block] = {}  # the best block of each application, while it is valid
        self.fits = np.zeros_like(choices.memory_bytes, dtype=bool)
        self.settled = False  # whether no other network is cheaper for any application at its present units
        self._update_fits()

    @property
    def plan(self) -> UnitPlan:
        return UnitPlan(self.networks.copy(), self.units.copy())

    def give(self, app: int, units: int) -> None:
        """Allocate units to an application and re-select its network: argmin over m of C(m, u, v)."""
        self.units[app] += units
        self.left -= units
        self.blocks.pop(app, None)
        self._select(app)

    def select_networks(self) -> None:
        """Re-select networks at the present units while that lowers a cost, the largest gain first."""
        while not self.settled:
            gains = self.choices.cost[self.apps, self.networks, self.units] - self.lowest[self.apps, self.units]
            if gains.max() > MIN_GAIN:  # False for NaN
                self._select(int(gains.argmax()))
            else:
                self.settled = True

    def _select(self, app: int) -> None:
        column = self.cost[app, :, self.units[app]]
        best = int(column.argmin())
        if column[best] < column[self.networks[app]]:
            self.networks[app] = best
            self._update_fits()

    def _update_fits(self) -> None:
        """Update which networks fit into the memory that the other applications leave, and the lowest costs."""
        used = memory_of(self.choices, UnitPlan(self.networks, self.units))
        fits = self.choices.memory_bytes <= (used + self.choices.limit_bytes - used.sum())[:, None]
        if not np.array_equal(fits, self.fits):
            self.fits = fits
            self.cost: Floats = np.where(fits[:, :, None], self.choices.cost, np.inf)
            self.lowest: Floats = self.cost.min(axis=1)
            self.blocks.clear()
            self.settled = False


def smallest_plan(choices: Choices) -> UnitPlan:
    """Return one unit and the smallest network for every application: the start from scratch."""
    return UnitPlan(choices.memory_bytes.argmin(axis=1), np.ones(len(choices.cost), np.int64))


def allocate_units(choices: Choices, method: str, start: UnitPlan) -> Iterator[GreedyAllocation]:
    """Yield the allocation after each step of a rule, until no step lowers a cost or no unit is left."""
    walk, rule = GreedyAllocation(choices, start), RULES[method]
    walk.select_networks()
    yield walk
    while walk.left and (step := rule(walk)) is not None:
        walk.give(*step)
        walk.select_networks()
        yield walk


# Rules of MinTotalCost (Eq. 3): the next application to receive units, and how many; None ends the allocation.


def steepest(walk: GreedyAllocation) -> Step | None:
    """Allocate one unit where the cost falls most; of equals, to the application with fewer units.

    Where one unit lowers no cost but several may, units are allocated in turn; None if all remaining units would lower
    no cost.
    """
    now = walk.lowest[walk.apps, walk.units]
    gains = now - walk.lowest[walk.apps, walk.units + 1]
    gains[gains <= MIN_GAIN] = 0
    if not gains.any() and (now - walk.lowest[walk.apps, walk.units + walk.left] <= MIN_GAIN).all():
        return None
    return int(np.lexsort((walk.apps, walk.units, -gains))[0]), 1


def literal(walk: GreedyAllocation) -> Step | None:
    """Allocate one unit where the cost changes least: the literal reading of "smallest cost increase"."""
    changes = np.abs(walk.lowest[walk.apps, walk.units] - walk.lowest[walk.apps, walk.units + 1])
    return int(np.lexsort((walk.apps, walk.units, changes))[0]), 1


def lookahead(walk: GreedyAllocation) -> Step | None:
    """Allocate the block of units with the largest fall of cost per unit; one unit may not suffice."""
    have = walk.units.tolist()
    for app in range(len(have)):
        if app not in walk.blocks or walk.blocks[app][3] > walk.left:
            gain, units = _best_block(walk.lowest[app], have[app], walk.counts[: walk.left])
            walk.blocks[app] = (gain, -have[app], -app, units)
    gain, _, minus_app, units = max(walk.blocks.values())
    return (-minus_app, units) if gain > MIN_GAIN else None


def _best_block(lowest: Floats, have: int, counts: Ints) -> tuple[float, int]:
    per_unit = (lowest[have] - lowest[have + 1 : have + 1 + len(counts)]) / counts
    best = int(per_unit.argmax())
    return float(per_unit[best]), best + 1


# Rules of MinMaxCost (Eq. 4).


def highest_literal(walk: GreedyAllocation) -> Step | None:
    """Allocate one unit to the highest cost, even if no number of units lowers it: as the text says."""
    return int(costs_of(walk.choices, UnitPlan(walk.networks, walk.units)).argmax()), 1


def highest(walk: GreedyAllocation) -> Step | None:
    """Allocate one unit to the highest cost; skip applications whose cost no remaining units lower."""
    costs = costs_of(walk.choices, UnitPlan(walk.networks, walk.units))
    for app in np.argsort(-costs, kind="stable"):
        if costs[app] - walk.lowest[app, walk.units[app] + walk.left] > MIN_GAIN:
            return int(app), 1
    return None


RULES: Mapping[str, Callable[[GreedyAllocation], Step | None]] = {
    "steepest": steepest,
    "literal": literal,
    "lookahead": lookahead,
    "highest": highest,
    "highest_literal": highest_literal,
}


# Improvements of an allocation, which the paper does not have.


def exchange(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Redistribute the units of every pair of applications, with the units left, until no pair gains."""
    pairs = list(combinations(range(len(plan.units)), 2))
    may_gain, in_vain = _may_gain(choices, plan, pairs), 0
    for pair in pairs * ROUNDS:
        after = _redistribute(choices, plan, *pair) if pair in may_gain else plan
        if after is not plan:
            plan, may_gain, in_vain = after, _may_gain(choices, after, pairs), 0
        elif (in_vain := in_vain + 1) == len(pairs):
            break
    return plan


def _may_gain(choices: Choices, plan: UnitPlan, pairs: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs that could gain: a lower bound of each pair's cost excludes the others.

    For the bound, both applications may use any network that fits if some application runs its smallest one.
    """
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    used, costs = memory_of(choices, plan), costs_of(choices, plan)
    freed = (used - choices.memory_bytes.min(axis=1)).max()
    fits = choices.memory_bytes <= (used + (choices.limit_bytes - used.sum() + freed))[:, None]
    lowest = np.where(fits[:, :, None], choices.cost, np.inf).min(axis=1)
    units = plan.units[first] + plan.units[second] + (choices.units - plan.units.sum())
    rest = np.maximum(units[:, None] - np.arange(choices.units + 1), 0)  # with no unit left the cost is infinite
    bounds = (lowest[first] + lowest[second[:, None], rest]).min(axis=1)
    in_vain = bounds >= costs[first] + costs[second] - MIN_GAIN
    return {pair for pair, vain in zip(pairs, in_vain.tolist(), strict=True) if not vain}


def _redistribute(choices: Choices, plan: UnitPlan, first: int, second: int) -> UnitPlan:
    """Return the best networks and units of two applications; those of all others are unchanged."""
    used = memory_of(choices, plan)
    units = choices.units - int(plan.units.sum() - plan.units[first] - plan.units[second])
    free_bytes = choices.limit_bytes - (used.sum() - used[first] - used[second])
    now = sum(choices.cost[app, plan.networks[app], plan.units[app]] for app in (first, second))
    order, lowest = (ordered[second] for ordered in choices.by_size)
    largest = choices.memory_bytes[second, order].searchsorted(free_bytes - choices.memory_bytes[first], "right") - 1
    joined = choices.cost[first, :, 1:units] + lowest[largest, units - 1 : 0 : -1]
    joined[largest < 0] = np.inf
    network, more = divmod(int(joined.argmin()), units - 1)
    if joined[network, more] >= now - MIN_GAIN:
        return plan
    networks, new_units = plan.networks.copy(), plan.units.copy()
    new_units[[first, second]] = more + 1, units - more - 1
    others = order[: largest[network] + 1]
    networks[[first, second]] = network, others[choices.cost[second, others, new_units[second]].argmin()]
    return UnitPlan(networks, new_units)


def allocate_surplus(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Allocate surplus units to the application with the lowest achieved/requested frame rate."""
    units: Ints = plan.units.copy()
    rate = choices.rate[np.arange(len(units)), plan.networks]
    for _ in range(choices.units - int(units.sum())):
        units[(rate * units).argmin()] += 1
    return replace(plan, units=units)
