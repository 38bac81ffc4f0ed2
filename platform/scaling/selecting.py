"""AdaScale's performance-guided search (Section IV-C, Eq. 1, 6 and 7).

The module also has helpers of all members that select paths.

Eq. 6 and 7 contain no accuracy: taken literally, the cheapest network always wins. By default the search is therefore
lexicographic: the most accurate networks within the limits, and the cheapest of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.world.load import slowdown

Floats = npt.NDArray[np.float64]
Flag = Literal["ok", "relaxed", "infeasible"]
Mode = Literal["lexicographic", "paper", "distance"]
SLACK = 1e-12  # tolerance for rounding when accuracies are compared
MILLI = 1e3  # from seconds and joules to the units of the literal objective
STANDSTILL = 1e100  # slowdown at a share or clock of 0: finite, so that costs remain comparable


@dataclass(frozen=True, eq=False)
class PathTable:
    """The performance index table and the predictive performance table, joined: a row per network."""

    latency_s: Floats  # without other load
    energy_j: Floats
    accuracy: Floats  # 0 if not measured
    memory_bytes: Floats

    @classmethod
    def of(cls, variants: Sequence[Variant]) -> PathTable:
        """Read the networks of an application."""
        rows = [(one.latency_s, one.energy_j or 0.0, one.accuracy or 0.0, one.memory_bytes) for one in variants]
        return cls(*np.array(rows, dtype=np.float64).T.copy())


@dataclass(frozen=True)
class PathLimits:
    """The constraints of Eq. 7 and on memory; infinite without a limit."""

    latency_s: float = np.inf  # T, per frame
    energy_j: float = np.inf  # E_b, per frame
    accuracy: float = 0.0  # Acc_u of Eq. 1
    memory_bytes: float = np.inf
    floor: float = 0.0  # accuracy floor of an application without an accuracy goal: dropped before any goal


@dataclass(frozen=True)
class PathObjective:
    """The objective within the limits."""

    latency_weight: float = 0.5  # alpha of Eq. 6
    energy_weight: float = 0.5  # beta of Eq. 6
    tolerance: float = 0.01  # differences in accuracy up to this count as equal
    mode: Mode = "lexicographic"


def limits_of(budget: Budget, floor: float) -> PathLimits:
    """Return the limits of a budget; the floor applies if the application has no accuracy goal."""
    return PathLimits(
        np.inf if budget.latency_s is None else budget.latency_s,
        np.inf if budget.energy_j is None else budget.energy_j,
        budget.accuracy or 0.0,
        np.inf if budget.memory_bytes is None else budget.memory_bytes,
        floor if budget.accuracy is None else 0.0,
    )


def pick(
    table: PathTable, slower: float, limits: PathLimits, objective: PathObjective = PathObjective()
) -> tuple[int, Flag]:
    """Search the table for the best network.

    Latencies are `slower` times those of an idle processor.

    If no network meets all limits, the floor is dropped, then the energy and accuracy goals; if none is fast enough,
    the fastest that fits in memory is returned. The memory limit is only exceeded if no network fits. Ties go to the
    lower number.
    """
    slower, flag = min(slower, STANDSTILL), "ok"
    latency_s = table.latency_s * slower

    # The constraints of Eq. 7, and those on memory and accuracy.
    fits = table.memory_bytes <= limits.memory_bytes
    if not fits.any():
        return int(table.memory_bytes.argmin()), "infeasible"
    fast = fits & (latency_s <= limits.latency_s)
    if not fast.any():
        return int(np.where(fits, table.latency_s, np.inf).argmin()), "infeasible"
    feasible = fast & keeps_goals(table, limits)
    if not feasible.any():
        feasible, flag = fast, "relaxed"
    elif (above_floor := feasible & (table.accuracy >= limits.floor - SLACK)).any():
        feasible = above_floor
    if objective.mode == "lexicographic":
        best = table.accuracy[feasible].max()
        feasible = feasible & (table.accuracy >= best - objective.tolerance - SLACK)

    # arg min of Eq. 7, over J of Eq. 6 or the distance of Eq. 1.
    if objective.mode == "distance":
        capabilities = np.array([1 / slower if slower > 0 else 1.0])
        loss = demand_distance(_demands(table, latency_s, limits), capabilities)
    else:
        loss = _performance_loss(table, latency_s, limits, objective)
    return int(np.where(feasible, loss, np.inf).argmin()), flag  # type: ignore[return-value]


def keeps_goals(table: PathTable, limits: PathLimits) -> npt.NDArray[np.bool_]:
    """Mark the networks that meet the energy and accuracy goals."""
    kept: npt.NDArray[np.bool_] = (table.energy_j <= limits.energy_j) & (table.accuracy >= limits.accuracy - SLACK)
    return kept


def _performance_loss(table: PathTable, latency_s: Floats, limits: PathLimits, objective: PathObjective) -> Floats:
    """Return J of Eq. 6; mode `paper` in milliseconds and millijoules, else in shares of the limits."""
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
    """Return the distance of Eq. 1 between each network's demands P (a row) and all capabilities C.

    It draws every demand to the mean capability; the terms are comparable only without units.
    """
    apart = demands[:, :, None] - capabilities
    distance: Floats = np.sqrt((apart**2).sum(axis=(1, 2)))
    return distance


def _demands(table: PathTable, latency_s: Floats, limits: PathLimits) -> Floats:
    """Return the demands P of AdaScale's Eq. 1, one row per network.

    The columns are energy, latency, error and memory, as shares of the limit or the maximum.
    """
    pairs = (
        (table.energy_j, limits.energy_j), (latency_s, limits.latency_s), (1 - table.accuracy, 1.0),
        (table.memory_bytes, limits.memory_bytes),
    )  # fmt: skip
    return np.stack(
        [values / (limit if np.isfinite(limit) and limit > 0 else values.max() or 1.0) for values, limit in pairs],
        axis=1,
    )


def same(variants: Sequence[Variant], before: Sequence[Variant]) -> bool:
    """Return whether networks and their measurements are unchanged."""
    return variants is before or tuple(variants) == tuple(before)


def renamed(variants: Sequence[Variant], before: Sequence[Variant]) -> bool:
    """Return whether these are other networks; changed measurements do not count."""
    return [one.name for one in variants] != [one.name for one in before]


def predicted_slowdown(budget: Budget) -> float:
    """Return the predicted latency over that on the idle processor, from the share and the newest load."""
    speed = budget.share * slowdown(budget.load)
    return min(1 / speed, STANDSTILL) if speed > 0 else STANDSTILL


def alone_limit_s(budget: Budget) -> float:
    """Return the latency limit converted to the idle processor; infinite without a limit."""
    return math.inf if budget.latency_s is None else budget.latency_s / predicted_slowdown(budget)
