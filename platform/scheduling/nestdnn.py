"""NestDNN: the network and the share of every application by a greedy walk over units of the machine.

Differs from the paper: the cost falls steepest where the text says that it rises least (`literal` follows the words);
blocks of units are compared by default (`lookahead`); a program may be solved instead (`priced`); networks must fit
into memory at every step, and the highest cost is then bisected; units that lower no cost raise frame rates;
priorities weight costs; decisions are made when windows start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Demand, Scheduling, Window
from driftlab.platform.scheduling.costs import Choices, LatenessWeight, LoweredCost, MachineUnits, UnitPlan, tabulate
from driftlab.platform.scheduling.greedy import exchange, grow, smallest, spread
from driftlab.platform.scheduling.programming import exchange_alike, levelled, priced


@dataclass(frozen=True)
class CachedPlan:
    """An unfinished plan, and the conditions in which it is valid."""

    apps: tuple[tuple[str, int], ...]  # names, and numbers of networks
    memory_bytes: int
    alpha: float
    networks: tuple[int, ...]
    units: tuple[int, ...]
    times: int  # how often it was resumed


@dataclass(frozen=True)
class NestDnn(Scheduling):
    """Greedily lower the total or the highest cost of missing accuracy and late answers, within compute and memory."""

    objective: LoweredCost = "total"
    method: Annotated[
        Literal["lookahead", "steepest", "literal", "priced"],
        Means("how the total is lowered; the highest cost has one way"),
    ] = "lookahead"
    alpha: LatenessWeight = 0.1
    units: MachineUnits = 100
    cached: Annotated[bool, Means("whether the next window takes an unfinished plan up")] = True
    kept: Annotated[float, Ge(0), Le(1), Means("share of the units that an unfinished plan has handed out")] = 0.7
    renew: Annotated[int, Ge(1), Means("windows that a plan serves before one is made from scratch")] = 10
    names: Annotated[bool, Means("whether networks are chosen here; else scaling chooses within the shares")] = True

    wants = EACH_WINDOW

    def allocate(self, window: Window) -> Allocation:
        """Resume the cached plan, allocate the rest of the machine, and cache the plan for the next window."""
        admitted, notes = admit(window, self.units)
        if not admitted:
            return allocation(window, [], notes)
        demands = [window.demands[i] for i in admitted]
        choices = tabulate(demands, window.memory_bytes, self.alpha, self.units)
        if (self.objective, self.method) == ("total", "priced"):
            plan, state = spread(choices, priced(choices)), None
        else:
            plan, state = self._walked(window, demands, choices)
        shares = (plan.units / self.units).tolist()
        found = allocation(window, list(zip(admitted, plan.networks.tolist(), shares, strict=True)), notes, state)
        return found if self.names else replace(found, grants=tuple(replace(one, variant=None) for one in found.grants))

    def _walked(self, window: Window, demands: Sequence[Demand], choices: Choices) -> tuple[UnitPlan, Any]:
        """Resume the cached plan or start a new one, and cache it unfinished."""
        kept = self._kept(window, demands, choices)
        plan, unfinished = self._hand_out(choices, smallest(choices) if kept is None else _plan(kept))
        return plan, self._keep(window, demands, unfinished, 0 if kept is None else kept.times)

    def _hand_out(self, choices: Choices, start: UnitPlan) -> tuple[UnitPlan, UnitPlan]:
        """Allocate all units; return the finished plan and the last one within the `kept` share of the units."""
        unfinished = start
        for walk in grow(choices, "highest" if self.objective == "max" else self.method, start):
            if self.units - walk.left <= self.kept * self.units:
                unfinished = walk.plan
        plan = walk.plan
        if self.objective == "max":
            plan = levelled(choices, plan)
        elif self.method == "lookahead":
            plan = exchange_alike(choices, exchange(choices, plan))
        return spread(choices, plan), unfinished

    def _kept(self, window: Window, demands: Sequence[Demand], choices: Choices) -> CachedPlan | None:
        """Return the cached plan if it is valid for these applications on this machine."""
        kept = window.state
        if not self.cached or not isinstance(kept, CachedPlan) or kept.times >= self.renew:
            return None
        same = (kept.apps, kept.memory_bytes, kept.alpha) == (_apps(demands), window.memory_bytes, self.alpha)
        if not same or sum(kept.units) > self.units:
            return None
        held = choices.memory_bytes[np.arange(len(kept.networks)), list(kept.networks)].sum()
        return kept if held <= choices.limit_bytes else None

    def _keep(self, window: Window, demands: Sequence[Demand], plan: UnitPlan, times: int) -> Any:
        if not self.cached:
            return None
        networks, units = tuple(plan.networks.tolist()), tuple(plan.units.tolist())
        return CachedPlan(_apps(demands), window.memory_bytes, self.alpha, networks, units, times + 1)


def _plan(kept: CachedPlan) -> UnitPlan:
    return UnitPlan(np.array(kept.networks, np.int64), np.array(kept.units, np.int64))


def _apps(demands: Sequence[Demand]) -> tuple[tuple[str, int], ...]:
    return tuple((demand.app, len(demand.variants)) for demand in demands)
