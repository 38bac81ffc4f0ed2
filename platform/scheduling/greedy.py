"""NestDNN's greedy heuristics: allocate the machine unit by unit, and choose each network anew as its share grows.

A network may be chosen while all networks together fit into memory. A walk depends only on its starting plan, so it can
be interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from driftlab.platform.scheduling.costs import Choices, Floats, Ints, UnitPlan, costs_of, memory_of

MIN_GAIN = 1e-12  # a smaller change of cost is rounding
Step = tuple[int, int]  # an application, and the units that it is given
Block = tuple[float, int, int, int]  # gain per unit, minus units held, minus the application, units: the highest wins
ROUNDS = 5  # of exchange; two are nearly always enough


class Walk:
    """A plan in progress, with each application's lowest cost for every number of units (B of its network)."""

    def __init__(self, choices: Choices, plan: UnitPlan) -> None:
        self.choices = choices
        self.networks, self.units = plan.networks.copy(), plan.units.copy()
        self.left = choices.units - int(self.units.sum())
        self.apps, self.counts = np.arange(len(self.units)), np.arange(1, choices.units + 1)
        self.blocks: dict[int, Block] = {}  # the best block of each application, while it is valid
        self.fits = np.zeros_like(choices.memory_bytes, dtype=bool)
        self.settled = False  # whether no application gains from another network at its present units
        self._look()

    @property
    def plan(self) -> UnitPlan:
        return UnitPlan(self.networks.copy(), self.units.copy())

    def give(self, app: int, units: int) -> None:
        """Give units to an application and choose its network anew."""
        self.units[app] += units
        self.left -= units
        self.blocks.pop(app, None)
        self._choose(app)

    def choose(self) -> None:
        """Choose networks anew where that helps at the present units, the largest gain first."""
        while not self.settled:
            gains = self.choices.cost[self.apps, self.networks, self.units] - self.lowest[self.apps, self.units]
            if gains.max() > MIN_GAIN:  # a comparison that NaN fails
                self._choose(int(gains.argmax()))
            else:
                self.settled = True

    def _choose(self, app: int) -> None:
        column = self.cost[app, :, self.units[app]]
        best = int(column.argmin())
        if column[best] < column[self.networks[app]]:
            self.networks[app] = best
            self._look()

    def _look(self) -> None:
        """Find the networks that fit beside those of the other applications."""
        held = memory_of(self.choices, UnitPlan(self.networks, self.units))
        fits = self.choices.memory_bytes <= (held + self.choices.limit_bytes - held.sum())[:, None]
        if not np.array_equal(fits, self.fits):
            self.fits = fits
            self.cost: Floats = np.where(fits[:, :, None], self.choices.cost, np.inf)
            self.lowest: Floats = self.cost.min(axis=1)
            self.blocks.clear()
            self.settled = False


def smallest(choices: Choices) -> UnitPlan:
    """Start from one unit and the smallest network for every application."""
    return UnitPlan(choices.memory_bytes.argmin(axis=1), np.ones(len(choices.cost), np.int64))


def grow(choices: Choices, method: str, start: UnitPlan) -> Iterator[Walk]:
    """Allocate units by a rule until no step improves or none is left; yield the same walk after every step."""
    walk, rule = Walk(choices, start), RULES[method]
    walk.choose()
    yield walk
    while walk.left and (step := rule(walk)) is not None:
        walk.give(*step)
        walk.choose()
        yield walk


# The rules: the application that gets the next units, and how many; None ends the walk.


def steepest(walk: Walk) -> Step | None:
    """Give one unit to the application whose cost falls most, among equals the one with fewer units.

    Where one unit lowers no cost but several may, units go round; the walk ends when all units left would not help.
    """
    now = walk.lowest[walk.apps, walk.units]
    gains = now - walk.lowest[walk.apps, walk.units + 1]
    gains[gains <= MIN_GAIN] = 0
    if not gains.any() and (now - walk.lowest[walk.apps, walk.units + walk.left] <= MIN_GAIN).all():
        return None
    return int(np.lexsort((walk.apps, walk.units, -gains))[0]), 1


def literal(walk: Walk) -> Step | None:
    """Give one unit to the application whose cost changes least: a literal reading of the paper."""
    changes = np.abs(walk.lowest[walk.apps, walk.units] - walk.lowest[walk.apps, walk.units + 1])
    return int(np.lexsort((walk.apps, walk.units, changes))[0]), 1


def lookahead(walk: Walk) -> Step | None:
    """Give the block of units with the largest fall of cost per unit: several units may help where one does not."""
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


def lower_highest(walk: Walk) -> Step | None:
    """Give one unit to the application with the highest cost, skipping those that all units left would not help."""
    costs = costs_of(walk.choices, UnitPlan(walk.networks, walk.units))
    for app in np.argsort(-costs, kind="stable"):
        if costs[app] - walk.lowest[app, walk.units[app] + walk.left] > MIN_GAIN:
            return int(app), 1
    return None


RULES: Mapping[str, Callable[[Walk], Step | None]] = {
    "steepest": steepest,
    "literal": literal,
    "lookahead": lookahead,
    "highest": lower_highest,
}


# Steps after a walk.


def exchange(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Divide the units of every two applications and the units left anew, until no two of them gain."""
    pairs = list(combinations(range(len(plan.units)), 2))
    may_gain, in_vain = _may_gain(choices, plan, pairs), 0
    for pair in pairs * ROUNDS:
        after = _divide(choices, plan, *pair) if pair in may_gain else plan
        if after is not plan:
            plan, may_gain, in_vain = after, _may_gain(choices, after, pairs), 0
        elif (in_vain := in_vain + 1) == len(pairs):
            break
    return plan


def _may_gain(choices: Choices, plan: UnitPlan, pairs: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """Find the pairs that could gain: a lower bound of what a pair costs, for all pairs at once, rules out the others.

    For the bound each of the two may take any network that fits once some application runs its smallest one.
    """
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    held, costs = memory_of(choices, plan), costs_of(choices, plan)
    freed = (held - choices.memory_bytes.min(axis=1)).max()
    fits = choices.memory_bytes <= (held + (choices.limit_bytes - held.sum() + freed))[:, None]
    lowest = np.where(fits[:, :, None], choices.cost, np.inf).min(axis=1)
    units = plan.units[first] + plan.units[second] + (choices.units - plan.units.sum())
    rest = np.maximum(units[:, None] - np.arange(choices.units + 1), 0)  # with no unit left the cost is infinite
    bounds = (lowest[first] + lowest[second[:, None], rest]).min(axis=1)
    in_vain = bounds >= costs[first] + costs[second] - MIN_GAIN
    return {pair for pair, vain in zip(pairs, in_vain.tolist(), strict=True) if not vain}


def _divide(choices: Choices, plan: UnitPlan, first: int, second: int) -> UnitPlan:
    """Return the best networks and units of two applications while all others keep theirs."""
    held = memory_of(choices, plan)
    units = choices.units - int(plan.units.sum() - plan.units[first] - plan.units[second])
    free_bytes = choices.limit_bytes - (held.sum() - held[first] - held[second])
    now = sum(choices.cost[app, plan.networks[app], plan.units[app]] for app in (first, second))
    order, lowest = (ordered[second] for ordered in choices.by_size)
    beside = choices.memory_bytes[second, order].searchsorted(free_bytes - choices.memory_bytes[first], "right") - 1
    joined = choices.cost[first, :, 1:units] + lowest[beside, units - 1 : 0 : -1]
    joined[beside < 0] = np.inf
    network, more = divmod(int(joined.argmin()), units - 1)
    if joined[network, more] >= now - MIN_GAIN:
        return plan
    networks, given = plan.networks.copy(), plan.units.copy()
    given[[first, second]] = more + 1, units - more - 1
    others = order[: beside[network] + 1]
    networks[[first, second]] = network, others[choices.cost[second, others, given[second]].argmin()]
    return UnitPlan(networks, given)


def spread(choices: Choices, plan: UnitPlan) -> UnitPlan:
    """Give the units left to the application furthest below its frame rate: costs stay, rates rise."""
    units: Ints = plan.units.copy()
    rate = choices.rate[np.arange(len(units)), plan.networks]
    for _ in range(choices.units - int(units.sum())):
        units[(rate * units).argmin()] += 1
    return replace(plan, units=units)
