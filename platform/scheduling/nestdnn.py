"""NestDNN's scheduler (MobiCom 2018): a descendant model and a compute share per application.

In the order of section 3.3 of the paper: the cost function (Eq. 2, `costs.py`), MinTotalCost (Eq. 3) and MinMaxCost
(Eq. 4) as rules of allocating units Δu (`greedy.py`), and the cache of an unfinished plan.

Differs from the paper: the cost falls steepest where the text says that it rises least (`literal` follows the words);
by default a program is solved instead (`priced`), or blocks of units are compared (`lookahead`); networks must fit
into memory at every step, and the highest cost is then bisected; under it the total is lowered; units that lower no
cost raise frame rates; priorities weight costs; decisions are made when windows start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, Demand, SchedulerInput, Scheduling
from driftlab.platform.scheduling.costs import Choices, LatenessWeight, LoweredCost, MachineUnits, UnitPlan, tabulate
from driftlab.platform.scheduling.greedy import allocate_surplus, allocate_units, exchange, smallest_plan
from driftlab.platform.scheduling.programming import exchange_alike, levelled, priced


@dataclass(frozen=True)
class CachedPlan:
    """An unfinished plan, and the conditions under which it is valid."""

    apps: tuple[tuple[str, int], ...]  # names and numbers of networks
    memory_bytes: int
    alpha: float
    networks: tuple[int, ...]
    units: tuple[int, ...]
    times: int  # how often it was resumed


@dataclass(frozen=True)
class NestDnn(Scheduling):
    """NestDNN (MobiCom 2018): greedy MinTotalCost or MinMaxCost over goals, per window."""

    objective: LoweredCost = "total"
    method: Annotated[
        Literal["lookahead", "steepest", "literal", "priced"],
        Means("rule that lowers the total cost; for the highest cost only literal differs from the others"),
    ] = "priced"
    alpha: LatenessWeight = 0.1
    units: MachineUnits = 100
    cached: Annotated[bool, Means("whether the next window resumes an unfinished plan")] = True
    cached_share: Annotated[float, Ge(0), Le(1), Means("share of the units that an unfinished plan has allocated")] = (
        0.7
    )
    replan_windows: Annotated[
        int, Ge(1), Means("number of windows that one plan serves before a plan from scratch")
    ] = 10
    selects_variant: Annotated[
        bool, Means("whether networks are chosen here; else scaling chooses within the shares")
    ] = True

    version, triggers = 2, WINDOW_ONLY

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Allocate all units and choose the networks; the state is the unfinished plan for the next window."""
        admitted, notes = admit(window, self.units)
        if not admitted:
            return allocation(window, [], notes)
        demands = [window.demands[i] for i in admitted]
        choices = tabulate(demands, window.memory_bytes, self.alpha, self.units)  # Eq. 2
        state = None
        if (self.objective, self.method) == ("total", "priced"):
            plan = priced(choices)
        else:
            cached = self._valid_cache(window, demands, choices)
            start = smallest_plan(choices) if cached is None else _plan_of(cached)
            plan, unfinished = self._minimise(choices, start)
            if self.cached:
                state = self._cache(window, demands, unfinished, times=1 if cached is None else cached.times + 1)
        plan = allocate_surplus(choices, plan)
        networks = plan.networks.tolist() if self.selects_variant else [None] * len(admitted)
        shares = (plan.units / self.units).tolist()
        return allocation(window, list(zip(admitted, networks, shares, strict=True)), notes, state)

    def _minimise(self, choices: Choices, start: UnitPlan) -> tuple[UnitPlan, UnitPlan]:
        """Allocate the units by the objective's rule; also return the plan at the `kept` share of units."""
        unfinished, literal = start, self.method == "literal"
        rule = self.method if self.objective == "total" else "highest_literal" if literal else "highest"
        for walk in allocate_units(choices, rule, start):
            if self.units - walk.left <= self.cached_share * self.units:
                unfinished = walk.plan
        if self.objective == "max" and not literal:  # MinMaxCost, Eq. 4
            return levelled(choices, walk.plan), unfinished
        if self.method == "lookahead":  # MinTotalCost, Eq. 3
            return exchange_alike(choices, exchange(choices, walk.plan)), unfinished
        return walk.plan, unfinished

    def _valid_cache(self, window: SchedulerInput, demands: Sequence[Demand], choices: Choices) -> CachedPlan | None:
        """Return the cached plan if it is valid for these applications, this memory and these parameters."""
        cached = window.state
        if not self.cached or not isinstance(cached, CachedPlan) or cached.times >= self.replan_windows:
            return None
        conditions = (_apps(demands), window.memory_bytes, self.alpha)
        if (cached.apps, cached.memory_bytes, cached.alpha) != conditions or sum(cached.units) > self.units:
            return None
        used_bytes = choices.memory_bytes[np.arange(len(cached.networks)), list(cached.networks)].sum()
        return cached if used_bytes <= choices.limit_bytes else None

    def _cache(self, window: SchedulerInput, demands: Sequence[Demand], plan: UnitPlan, times: int) -> CachedPlan:
        networks, units = tuple(plan.networks.tolist()), tuple(plan.units.tolist())
        return CachedPlan(_apps(demands), window.memory_bytes, self.alpha, networks, units, times)


def _plan_of(cached: CachedPlan) -> UnitPlan:
    return UnitPlan(np.array(cached.networks, np.int64), np.array(cached.units, np.int64))


def _apps(demands: Sequence[Demand]) -> tuple[tuple[str, int], ...]:
    return tuple((demand.app, len(demand.variants)) for demand in demands)
