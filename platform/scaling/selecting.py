"""The choice among many networks within limits, and the trigger that asks for it: the steps of AdaScale's loop.

The literal objective of the paper (Eq. 6 and 7) holds no accuracy: the cheapest network always wins. So the choice is
lexicographic by default: the most accurate networks within the limits, and of these the cheapest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.world.forecasting import Forecaster, ForecastState
from driftlab.platform.world.load import IndexWeights, load_index, slowdown

Floats = npt.NDArray[np.float64]
Flag = Literal["ok", "relaxed", "infeasible"]
Mode = Literal["lexicographic", "paper", "distance"]
SLACK = 1e-12  # of comparisons of accuracies
MILLI = 1e3  # seconds and joules in the units of the literal objective
STANDSTILL = 1e100  # slowdown of a machine without a share or a clock: finite, so that costs compare


@dataclass(frozen=True, eq=False)
class PathTable:
    """What is known of each network, by its number: the paper's two tables, joined."""

    latency_s: Floats  # alone on the idle machine
    energy_j: Floats
    accuracy: Floats  # 0 where none was measured
    memory_bytes: Floats

    @classmethod
    def of(cls, variants: Sequence[Variant]) -> PathTable:
        """Read the networks of an application."""
        rows = [(one.latency_s, one.energy_j or 0.0, one.accuracy or 0.0, one.memory_bytes) for one in variants]
        return cls(*np.array(rows, dtype=np.float64).T.copy())


@dataclass(frozen=True)
class PathLimits:
    """The limits of a choice: per frame, and on the memory; infinite where there is none."""

    latency_s: float = np.inf
    energy_j: float = np.inf
    accuracy: float = 0.0
    memory_bytes: float = np.inf
    floor: float = 0.0  # of accuracy, where no goal was set: it yields to all goals


@dataclass(frozen=True)
class PathObjective:
    """What is chosen among the networks within the limits."""

    latency_weight: float = 0.5
    energy_weight: float = 0.5
    tolerance: float = 0.01  # networks this much less accurate count as equal
    mode: Mode = "lexicographic"


def pick(
    table: PathTable, slower: float, limits: PathLimits, objective: PathObjective = PathObjective()
) -> tuple[int, Flag]:
    """Choose a network, given by how much the machine is slower than it is alone.

    Where no network keeps all limits, the floor is dropped, then the goals of energy and accuracy; where none is fast
    enough, the fastest one is taken. Memory is never exceeded unless no network fits. Ties go to the lower number.
    """
    slower, flag = min(slower, STANDSTILL), "ok"
    latency_s = table.latency_s * slower
    held = table.memory_bytes <= limits.memory_bytes
    if not held.any():
        return int(table.memory_bytes.argmin()), "infeasible"
    quick = held & (latency_s <= limits.latency_s)
    if not quick.any():
        return int(np.where(held, table.latency_s, np.inf).argmin()), "infeasible"
    good = quick & keeps_goals(table, limits)
    if not good.any():
        good, flag = quick, "relaxed"
    elif (floored := good & (table.accuracy >= limits.floor - SLACK)).any():
        good = floored
    if objective.mode == "distance":
        cost = demand_distance(_demands(table, latency_s, limits), np.array([1 / slower if slower > 0 else 1.0]))
    else:
        cost = _cost(table, latency_s, limits, objective)
    if objective.mode == "lexicographic":
        good = good & (table.accuracy >= table.accuracy[good].max() - objective.tolerance - SLACK)
    return int(np.where(good, cost, np.inf).argmin()), flag  # type: ignore[return-value]


def keeps_goals(table: PathTable, limits: PathLimits) -> npt.NDArray[np.bool_]:
    """Tell for each network whether it keeps the goals of energy and accuracy."""
    kept: npt.NDArray[np.bool_] = (table.energy_j <= limits.energy_j) & (table.accuracy >= limits.accuracy - SLACK)
    return kept


def _cost(table: PathTable, latency_s: Floats, limits: PathLimits, objective: PathObjective) -> Floats:
    """Weigh latency and energy: as shares of their limits, or literally in milliseconds and millijoules."""
    if objective.mode == "paper":
        latency_unit = energy_unit = 1 / MILLI
    else:
        latency_unit, energy_unit = (
            limit if np.isfinite(limit) and limit > 0 else float(values.max()) or 1.0
            for limit, values in ((limits.latency_s, latency_s), (limits.energy_j, table.energy_j))
        )
    weights = objective.latency_weight / latency_unit, objective.energy_weight / energy_unit
    return weights[0] * latency_s + weights[1] * table.energy_j


def demand_distance(demands: Floats, capabilities: Floats) -> Floats:
    """Return the distance of each network's demands (a row) from all capabilities (Eq. 1 of the paper).

    It draws every demand towards the mean capability; only without units do the terms compare.
    """
    apart = demands[:, :, None] - capabilities
    distance: Floats = np.sqrt((apart**2).sum(axis=(1, 2)))
    return distance


def _demands(table: PathTable, latency_s: Floats, limits: PathLimits) -> Floats:
    """Return energy, latency, error and memory of each network as shares of their limits, or of the most there is."""
    pairs = (
        (table.energy_j, limits.energy_j), (latency_s, limits.latency_s), (1 - table.accuracy, 1.0),
        (table.memory_bytes, limits.memory_bytes),
    )  # fmt: skip
    return np.stack(
        [values / (limit if np.isfinite(limit) and limit > 0 else values.max() or 1.0) for values, limit in pairs],
        axis=1,
    )


@dataclass(frozen=True)
class Trigger:
    """When the loop switches: at once where a limit is broken, later and with headroom to something better."""

    dwell_s: float = 1.0  # after a switch, before a better network is loaded
    periods: int = 3  # for which a better network must have fitted
    headroom: float = 0.9  # share of the latency limit that it may take


@dataclass(frozen=True)
class Foreseen:
    """What is expected of the load: at the next reading, and by which model."""

    expected: float | None = None  # CPU load; None: the device senses nothing
    model: ForecastState | None = None


@dataclass(frozen=True, eq=False)
class LoopState:
    """The state of the loop: the network that runs, since when, and for how long a better one has fitted."""

    table: PathTable
    variants: Sequence[Variant]
    which: int
    since_s: float
    goals: tuple[object, ...]  # the limits that it was chosen for
    outlook: Foreseen
    better: int = 0
    flag: Flag = "ok"

    def told(self, variants: Sequence[Variant]) -> LoopState:
        """Take over what is known of the networks now; dwell time, patience and the running network stay."""
        if same(variants, self.variants):
            return self
        return replace(self, table=PathTable.of(variants), variants=variants)


def respond(
    before: LoopState, now_s: float, slower: float, limits: PathLimits, objective: PathObjective, trigger: Trigger
) -> LoopState:
    """Decide whether to switch at a reading, where `slower` is what is predicted until the next one.

    A goal that had to be dropped is not broken at every reading: a network that keeps it counts as a better one.
    """
    table, now, goals = before.table, before.which, goals_of(limits)
    kept = bool(keeps_goals(table, limits)[now])
    broken = (
        table.latency_s[now] * min(slower, STANDSTILL) > limits.latency_s
        or table.memory_bytes[now] > limits.memory_bytes
        or (before.flag == "ok" and not kept)
    )
    if broken or goals != before.goals:
        which, flag = pick(table, slower, limits, objective)
        since_s = before.since_s if which == now else now_s
        return replace(before, which=which, since_s=since_s, goals=goals, better=0, flag=flag)
    roomy = replace(limits, latency_s=trigger.headroom * limits.latency_s)
    which, flag = pick(table, slower, roomy, objective)
    admissible = flag == "ok" or (flag == "relaxed" and not kept)
    gains = table.accuracy[which] >= table.accuracy[now] + objective.tolerance - SLACK
    mends = flag == "ok" and not kept
    better = before.better + 1 if admissible and (gains or mends) else 0
    if better >= trigger.periods and now_s - before.since_s >= trigger.dwell_s:
        return replace(before, which=which, since_s=now_s, better=0, flag=flag)
    return replace(before, better=better)


def same(variants: Sequence[Variant], before: Sequence[Variant]) -> bool:
    """Tell whether the same is known of the same networks."""
    return variants is before or tuple(variants) == tuple(before)


def renamed(variants: Sequence[Variant], before: Sequence[Variant]) -> bool:
    """Tell whether these are other networks, whatever is known of them."""
    return [one.name for one in variants] != [one.name for one in before]


def goals_of(limits: PathLimits) -> tuple[object, ...]:
    """Return the limits whose change calls for a new choice; free memory and the floor change all the time."""
    return (limits.latency_s, limits.energy_j, limits.accuracy)


def limits_of(budget: Budget, floor: float) -> PathLimits:
    """Read the limits of a budget; an application without an accuracy goal has a floor, which is no goal."""
    return PathLimits(
        np.inf if budget.latency_s is None else budget.latency_s,
        np.inf if budget.energy_j is None else budget.energy_j,
        budget.accuracy or 0.0,
        np.inf if budget.memory_bytes is None else budget.memory_bytes,
        floor if budget.accuracy is None else 0.0,
    )


def foresee(
    budget: Budget, forecaster: Forecaster, before: Foreseen | None, weights: IndexWeights | None = None
) -> tuple[float, Foreseen]:
    """Predict the slowdown until the next readings, by the highest load that is forecast, and keep the model.

    With weights the load index stands for the CPU load.
    """
    if not budget.load:
        return predicted_slowdown(budget), Foreseen()
    sensed = [one.cpu if weights is None else load_index(one, weights) for one in budget.load]
    loads, model = forecaster.predict(sensed, None if before is None else before.model)
    worst = replace(budget.load[-1], cpu=max(loads))
    return predicted_slowdown(replace(budget, load=(worst,))), Foreseen(loads[0], model)


def predicted_slowdown(budget: Budget) -> float:
    """Predict by how much an application is slower than alone on an idle machine: by its share, and the load."""
    speed = budget.share * slowdown(budget.load)
    return min(1 / speed, STANDSTILL) if speed > 0 else STANDSTILL


def alone_limit_s(budget: Budget) -> float:
    """Return the latency that a network may have alone on the idle machine; infinite without a limit."""
    return math.inf if budget.latency_s is None else budget.latency_s / predicted_slowdown(budget)
