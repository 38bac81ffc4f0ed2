"""The choices as arrays: cost (Eq. 2 of NestDNN) and memory of every network on every share.

C(m, u, v) = (A_min(v) - A(m)) + alpha * max(0, L(m) / u - L_max(v)), accuracies as fractions and latencies in seconds:
at alpha = 1 ten milliseconds of lateness cost as much as one percentage point. Shares come in equal units.
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
LoweredCost = Annotated[Objective, Means("the cost that is lowered: of all applications together, or the highest one")]
LatenessWeight = Annotated[float, Ge(0), Le(1), Means("weight of a second of lateness against all of the accuracy")]
MachineUnits = Annotated[int, Ge(1), Means("parts into which the machine is divided")]


@dataclass(frozen=True, eq=False)
class Choices:
    """Axes: applications, their networks, units of compute from 0 to all."""

    cost: Floats  # (apps, networks, units + 1): infinite without a unit, and for missing networks
    memory_bytes: Floats  # (apps, networks): infinite for missing networks
    rate: Floats  # (apps, networks): frames/s on the whole machine over the requested ones
    limit_bytes: float

    @property
    def units(self) -> int:
        return int(self.cost.shape[2]) - 1

    @cached_property
    def by_size(self) -> tuple[Ints, Floats]:
        """Order each application's networks by memory, with the least cost among each one and all smaller ones."""
        order = self.memory_bytes.argsort(axis=1, kind="stable")
        return order, np.minimum.accumulate(np.take_along_axis(self.cost, order[:, :, None], axis=1), axis=1)


@dataclass(frozen=True, eq=False)
class UnitPlan:
    """A network and a number of units for every application."""

    networks: Ints
    units: Ints


def weigh_cost(missing: Any, late_s: Any, alpha: float, priority: Any) -> Any:
    """Compute Eq. 2 for arrays or columns; a priority multiplies (1 + cost), which is never negative."""
    plain = missing + alpha * late_s
    return plain + (priority - 1) * (1 + plain)


def tabulate(demands: Sequence[Demand], limit_bytes: int, alpha: float, units: int) -> Choices:
    """Compute Eq. 2 for every network and share."""
    counts = np.array([len(demand.variants) for demand in demands], np.int64)
    there = np.arange(counts.max(initial=0)) < counts[:, None]
    memory_bytes, rate = np.full(there.shape, np.inf), np.zeros(there.shape)
    cost = np.full((*there.shape, units + 1), np.inf)
    variants = [variant for demand in demands for variant in demand.variants]
    latency_s = np.array([variant.latency_s for variant in variants])
    missing = np.array([each for demand in demands for each in missing_accuracy(demand)])
    goals_s = [np.inf if demand.latency_goal_s is None else demand.latency_goal_s for demand in demands]
    wishes = np.array([goals_s, [demand.fps for demand in demands], [demand.priority for demand in demands]])
    goal_s, fps, priority = wishes.repeat(counts, axis=1)  # of every network
    late_s = np.maximum(0, latency_s[:, None] / (np.arange(1, units + 1) / units) - goal_s[:, None])
    memory_bytes[there] = [variant.memory_bytes for variant in variants]
    rate[there] = 1 / (latency_s * fps)
    cost[there, 1:] = weigh_cost(missing[:, None], late_s, alpha, priority[:, None])
    return Choices(cost, memory_bytes, rate, float(limit_bytes))


def missing_accuracy(demand: Demand) -> list[float]:
    """Return each network's accuracy below the goal; an unmeasured network counts as if it met the goal.

    Without a goal, the least accurate network sets it, like the smallest descendant in the paper.
    """
    known = [variant.accuracy for variant in demand.variants if variant.accuracy is not None]
    goal = demand.accuracy_goal if demand.accuracy_goal is not None else min(known, default=0.0)
    return [0.0 if variant.accuracy is None else goal - variant.accuracy for variant in demand.variants]


def costs_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the cost of a plan for each application."""
    found: Floats = choices.cost[np.arange(len(plan.units)), plan.networks, plan.units]
    return found


def memory_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the memory of a plan's networks."""
    held: Floats = choices.memory_bytes[np.arange(len(plan.networks)), plan.networks]
    return held
