"""The choices as arrays: cost (Eq. 2 of NestDNN) and memory of every network on every share.

C(m, u, v) = (A_min(v) - A(m)) + alpha * max(0, L(m) / u - L_max(v)), accuracies as fractions and latencies in seconds:
at alpha = 1 ten milliseconds of lateness cost as much as one percentage point. Shares come in equal units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.base import Demand

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    most = max((len(demand.variants) for demand in demands), default=0)
    memory_bytes, rate = np.full((len(demands), most), np.inf), np.zeros((len(demands), most))
    cost = np.full((len(demands), most, units + 1), np.inf)
    shares = np.arange(1, units + 1) / units
    for v, demand in enumerate(demands):
        n = len(demand.variants)
        latency_s = np.array([variant.latency_s for variant in demand.variants])
        memory_bytes[v, :n] = [variant.memory_bytes for variant in demand.variants]
        rate[v, :n] = 1 / (latency_s * demand.fps)
        goal_s = np.inf if demand.latency_goal_s is None else demand.latency_goal_s
        late_s = np.maximum(0, latency_s[:, None] / shares - goal_s)
        cost[v, :n, 1:] = weigh_cost(missing_accuracy(demand)[:, None], late_s, alpha, demand.priority)
    return Choices(cost, memory_bytes, rate, float(limit_bytes))


def missing_accuracy(demand: Demand) -> Floats:
    """Return each network's accuracy below the goal; an unmeasured network counts as if it met the goal.

    Without a goal, the least accurate network sets it, like the smallest descendant in the paper.
    """
    known = [variant.accuracy for variant in demand.variants if variant.accuracy is not None]
    goal = demand.accuracy_goal if demand.accuracy_goal is not None else min(known, default=0.0)
    return np.array([0.0 if variant.accuracy is None else goal - variant.accuracy for variant in demand.variants])


def costs_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the cost of a plan for each application."""
    found: Floats = choices.cost[np.arange(len(plan.units)), plan.networks, plan.units]
    return found


def memory_of(choices: Choices, plan: UnitPlan) -> Floats:
    """Return the memory of a plan's networks."""
    held: Floats = choices.memory_bytes[np.arange(len(plan.networks)), plan.networks]
    return held
