"""AdaScale (arXiv 2412.00724): select operators and early exit as the device's load changes.

All choices are paths of one supernet.

Offline, `PathScaling.build` adds exits and compression operators to the network, pre-trains it stage by stage
(Algorithm 1) and profiles every path. At run time, each load reading predicts the latency of all paths; a trigger
decides whether to search, and the search returns the cheapest of the most accurate paths within the limits.

Differs from the paper: the objective of the paper contains no accuracy, so its literal form (`mode: paper`) always runs
the cheapest path that meets the accuracy goal; the distance between demands and capabilities (`mode: distance`) has no
units; by default the next load equals the last reading (`forecaster`), and latency is predicted from the CPU load
instead of the load index (`load_measure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling
from driftlab.platform.scaling.selecting import (
    SLACK,
    STANDSTILL,
    Flag,
    PathLimits,
    PathObjective,
    PathTable,
    keeps_goals,
    limits_of,
    pick,
    predicted_slowdown,
    renamed,
    same,
)
from driftlab.platform.world.forecasting import Forecaster, ForecastState
from driftlab.platform.world.load import IndexWeights, load_index


@dataclass(frozen=True)
class LoadForecast:
    """The forecast at a reading: the load at the next one, and the fitted model."""

    expected: float | None = None  # CPU load or load index; None: the device has no load readings
    model: ForecastState | None = None


@dataclass(frozen=True)
class PathChoice:
    """The running path, with the data for the trigger."""

    which: int
    since_s: float
    goals: tuple[object, ...]  # the limits that it was selected for
    flag: Flag
    better: int = 0  # readings in a row at which a better path fitted


@dataclass(frozen=True, eq=False)
class AdaScaleState:
    """The state between readings: networks and their table, the forecast, and the running path."""

    variants: Sequence[Variant]
    table: PathTable
    forecast: LoadForecast
    choice: PathChoice


@dataclass(frozen=True)
class AdaScale(PathScaling):
    """AdaScale (arXiv 2024): select operators and exit for the load.

    It reacts to a violation at once, and otherwise with hysteresis.
    """

    mode: Annotated[
        Literal["lexicographic", "paper", "distance"],
        Means("objective within the limits: accuracy and then J of Eq. 6, J only (Eq. 7), or the distance of Eq. 1"),
    ] = "lexicographic"
    latency_weight: Annotated[float, Ge(0), Le(1), Means("weight of latency in J (alpha of Eq. 6)")] = 0.5
    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in J (beta of Eq. 6)")] = 0.5
    tolerance: Annotated[
        float, Ge(0), Le(1), Means("difference in accuracy up to which paths count as equal", "fraction")
    ] = 0.01
    accuracy_loss: Annotated[
        float, Ge(0), Le(1), Means("accuracy floor without an accuracy goal, below the best path", "fraction")
    ] = 0.04
    forecaster: Annotated[
        Literal["persistence", "mean", "ar"], Means("forecast of the load until the next readings")
    ] = "persistence"
    load_measure: Annotated[
        Literal["cpu", "index"],
        Means("load that latency is predicted from: the CPU load, or the load index of Eq. 2"),
    ] = "cpu"
    cpu_weight: Annotated[float, Gt(0), Le(1000), Means("weight of the CPU in the load index (Eq. 2)")] = 0.6
    gpu_weight: Annotated[
        float, Ge(0), Le(1000), Means("weight of the GPU in the load index; ignored without a GPU")
    ] = 0.2
    memory_weight: Annotated[float, Ge(0), Le(1000), Means("weight of the memory in the load index")] = 0.2
    dwell_s: Annotated[
        float, Ge(0), Le(3600), Means("minimum time between a switch and a switch to a better path", "s")
    ] = 1.0
    patience: Annotated[int, Ge(1), Means("consecutive readings at which a better path must fit")] = 3
    headroom: Annotated[float, Gt(0), Le(1), Means("share of the latency limit that a better path may take")] = 0.9

    def faults(self) -> list[str]:
        """Return the faults of the paths, and refuse an objective that is the same for each of them."""
        free = not self.latency_weight and not self.energy_weight
        equal = ["'latency_weight' and 'energy_weight' are both 0, one must be above 0"] if free else []
        return [*super().faults(), *equal]

    def select_within(
        self, variants: Sequence[Variant], budget: Budget, state: AdaScaleState | None
    ) -> tuple[int, Any]:
        """Select a path at a reading; changed accuracies update the table and leave the trigger as it was."""
        # Section IV-A, resource availability awareness: load index (Eq. 2), forecast, slowdown.
        slower, forecast = self._forecast_slowdown(budget, None if state is None else state.forecast.model)

        # Section IV-B, model performance profiler: both tables.
        is_new = state is None or renamed(variants, state.variants)
        table = PathTable.of(variants) if state is None or not same(variants, state.variants) else state.table

        # Section IV-C, performance-guided search (Eq. 6 and 7): at the start, then if the trigger fires.
        limits = limits_of(budget, float(table.accuracy.max()) - self.accuracy_loss)
        if state is None or is_new:
            which, flag = pick(table, slower, limits, self.objective)
            choice = PathChoice(which, budget.now_s, _goals(limits), flag)
        else:
            choice = self._respond(state.choice, budget.now_s, table, slower, limits)
        return choice.which, AdaScaleState(variants, table, forecast, choice)

    def _forecast_slowdown(self, budget: Budget, model: ForecastState | None) -> tuple[float, LoadForecast]:
        """Predict the slowdown until the next readings, from the highest load of the forecast."""
        if not budget.load:
            return predicted_slowdown(budget), LoadForecast()
        weights = IndexWeights(self.cpu_weight, self.gpu_weight, self.memory_weight)
        sensed = [one.cpu if self.load_measure == "cpu" else load_index(one, weights) for one in budget.load]
        loads, model = Forecaster(self.forecaster).predict(sensed, model)
        worst = replace(budget.load[-1], cpu=max(loads))  # the load index takes the place of the CPU load
        return predicted_slowdown(replace(budget, load=(worst,))), LoadForecast(loads[0], model)

    def _respond(
        self, choice: PathChoice, now_s: float, table: PathTable, slower: float, limits: PathLimits
    ) -> PathChoice:
        """Switch at once if the running path violates a limit, and with hysteresis if a better path fits.

        A goal that had to be dropped is not a violation at every reading: a path that meets it counts as better.
        """
        running, goals = choice.which, _goals(limits)
        kept = bool(keeps_goals(table, limits)[running])
        violated = (
            table.latency_s[running] * min(slower, STANDSTILL) > limits.latency_s
            or table.memory_bytes[running] > limits.memory_bytes
            or (choice.flag == "ok" and not kept)
        )
        if violated or goals != choice.goals:
            which, flag = pick(table, slower, limits, self.objective)
            return PathChoice(which, choice.since_s if which == running else now_s, goals, flag)
        which, flag = pick(table, slower, replace(limits, latency_s=self.headroom * limits.latency_s), self.objective)
        admissible = flag == "ok" or (flag == "relaxed" and not kept)
        gains = table.accuracy[which] >= table.accuracy[running] + self.tolerance - SLACK
        restores = flag == "ok" and not kept
        better = choice.better + 1 if admissible and (gains or restores) else 0
        if better >= self.patience and now_s - choice.since_s >= self.dwell_s:
            return replace(choice, which=which, since_s=now_s, better=0, flag=flag)
        return replace(choice, better=better)

    def forecast(self, state: AdaScaleState | None) -> float | None:
        """Return the load expected at the next reading; with `load_measure: index` the load index."""
        return state.forecast.expected if isinstance(state, AdaScaleState) else None

    @property
    def objective(self) -> PathObjective:
        return PathObjective(self.latency_weight, self.energy_weight, self.tolerance, self.mode)


def _goals(limits: PathLimits) -> tuple[object, ...]:
    """Return the limits whose change calls for a search; free memory and the floor change all the time."""
    return (limits.latency_s, limits.energy_j, limits.accuracy)
