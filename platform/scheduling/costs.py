"""Cost function of NestDNN (Eq. 2) and memory as arrays, for every network at every share.

C(m, u, v) = (A_min(v) - A(m)) + alpha * max(0, L(m) / u - L_max(v)), accuracies as fractions and latencies in seconds:
at alpha = 1, ten milliseconds of lateness cost as much as one percentage point. Shares are multiples of a unit Δu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Demand

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Objective = Literal["total", "max"]
LoweredCost = Annotated[
    Objective, Means("cost to minimise: the total of all applications (MinTotalCost), or the highest one (MinMaxCost)")
]
LatenessWeight = Annotated[
    float, Ge(0), Le(1), Means("weight of one second of lateness; an accuracy of 1 has the weight 1")
]
MachineUnits = Annotated[int, Ge(1), Means("number of units Δu into which the processor is divided")]


@dataclass(frozen=True, eq=False)
class Choices:
    """Costs, memory and rates; axes: applications, their networks, units of compute from 0 to all."""

    cost: Floats  # (apps, networks, units + 1): infinite at 0 units, and for missing networks
    memory_bytes: Floats  # (apps, networks): infinite for missing networks
    rate: Floats  # (apps, networks): frames/s with all units over the requested frames/s
    limit_bytes: float

    @property
    def units(self) -> int:
        return int(self.cost.shape[2]) - 1

    @cached_property
    def by_size(self) -> tuple[Ints, Floats]:
        """Return each application's networks in order of memory, and the least cost up to each of them."""
        order = self.memory_bytes.argsort(axis=1, kind="stable")
        return order, np.minimum.accumulate(np.take_along_axis(self.cost, order[:, :, None], axis=1), axis=1)


@dataclass(frozen=True, eq=False)
class UnitPlan:
    """A network and a number of units for every application."""

    networks: Ints
    units: Ints


def weigh_cost(missing: Any, late_s: Any, alpha: float, priority: Any) -> Any:
    """Return Eq. 2 for arrays or columns; a priority multiplies (1 + cost), which is never negative."""
    plain = missing + alpha * late_s
    return plain + (priority - 1) * (1 + plain)


def tabulate(demands: Sequence[Demand], limit_bytes: int, alpha: float, units: int) -> Choices:
    """Return Eq. 2, memory and rates of every network at every share."""
    counts = np.array([len(demand.variants) for demand in demands], np.int64)
    exists = np.arange(counts.max(initial=0)) < counts[:, None]
    memory_bytes, rate = np.full(exists.shape, np.inf), np.zeros(exists.shape)
    cost = np.full((*exists.shape, units + 1), np.inf)
    variants = [variant for demand in demands for variant in demand.variants]
    latency_s = np.array([variant.latency_s for variant in variants])
    missing = np.array([each for demand in demands for each in missing_accuracy(demand)])
    goals_s = [np.inf if demand.latency_goal_s is None else demand.latency_goal_s for demand in demands]
    goals = np.array([goals_s, [demand.fps for demand in demands], [demand.priority for demand in demands]])
    goal_s, fps, priority = goals.repeat(counts, axis=1)  # of every network
    late_s = np.maximum(0, latency_s[:, None] / (np.arange(1, units + 1) / units) - goal_s[:, None])
    memory_bytes[exists] = [variant.memory_bytes for variant in variants]
    rate[exists] = 1 / (latency_s * fps)
    cost[exists, 1:] = weigh_cost(missing[:, None], late_s, alpha, priority[:, None])
    return Choices(cost, memory_bytes, rate, float(limit_bytes))


def missing_accuracy(demand: Demand) -> list[float]:
    """Return A_min - A of each network; an unmeasured network counts as if it met the goal.

    Without a goal, the lowest accuracy is the goal, like that of the smallest descendant in the paper.
    """
    measured = [variant.accuracy for variant in demand.variants if variant.accuracy is not None]
    goal = demand.accuracy_goal if demand.accuracy_goal is not None else min(measured, default=0.0)
    return [0.0 if variant.accuracy is None else goal - variant.accuracy for variant in demand.variants]


def costs_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the cost of a plan for each application."""
    costs: Floats = choices.cost[np.arange(len(plan.units)), plan.networks, plan.units]
    return costs


def memory_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the memory of a plan's networks, for each application."""
    used: Floats = choices.memory_bytes[np.arange(len(plan.networks)), plan.networks]
    return used
