"""AdaScale: the path of a branched network that fits the device's load, chosen anew whenever the load asks for it.

Offline, a network gets exits and compression operators, is trained stage by stage, and every path is measured. Online,
at each reading of the load, the latency of all paths is predicted; a trigger decides whether to search, and the search
returns the cheapest of the most accurate paths within the limits.

Differs from the paper: its objective holds no accuracy, so that its literal form (`mode: paper`) always runs the
cheapest path that is accurate enough, and its distance of demands from capabilities (`mode: distance`) has no units
here; by default the load is taken to stay as it was last sensed (`forecaster`), and latency is predicted from the CPU
load instead of a load index (`load_measure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths
from driftlab.platform.scaling.selecting import (
    LoopState,
    PathLimits,
    PathObjective,
    PathTable,
    Trigger,
    foresee,
    goals_of,
    limits_of,
    pick,
    renamed,
    respond,
)
from driftlab.platform.world.forecasting import Forecaster
from driftlab.platform.world.load import IndexWeights


@dataclass(frozen=True)
class AdaScale(OfPaths):
    """Choose the path that fits the load: at once where a limit is broken, with patience where a better one fits."""

    mode: Annotated[
        Literal["lexicographic", "paper", "distance"],
        Means("what counts within the limits: accuracy and then cost, cost alone (Eq. 7), or the distance of Eq. 1"),
    ] = "lexicographic"
    latency_weight: Annotated[float, Ge(0), Le(1), Means("weight of latency in the cost of a path")] = 0.5
    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in the cost of a path")] = 0.5
    tolerance: Annotated[
        float, Ge(0), Le(1), Means("how much less accurate a path may be and count as equal", "fraction")
    ] = 0.01
    accuracy_loss: Annotated[
        float, Ge(0), Le(1), Means("how far below the best path it may fall without an accuracy goal", "fraction")
    ] = 0.04
    forecaster: Annotated[
        Literal["persistence", "mean", "ar"], Means("what the load is taken to be until the next readings")
    ] = "persistence"
    load_measure: Annotated[
        Literal["cpu", "index"],
        Means("what latency is predicted from: the CPU load, or the mean of the use of CPU, GPU and memory"),
    ] = "cpu"
    cpu_weight: Annotated[float, Gt(0), Le(1000), Means("weight of the CPU in the load index")] = 0.6
    gpu_weight: Annotated[float, Ge(0), Le(1000), Means("weight of the GPU in it, where there is one")] = 0.2
    memory_weight: Annotated[float, Ge(0), Le(1000), Means("weight of the memory in the load index")] = 0.2
    dwell_s: Annotated[float, Ge(0), Le(3600), Means("time after a switch before a better path is loaded", "s")] = 1.0
    patience: Annotated[int, Ge(1), Means("readings in a row at which a better path must fit")] = 3
    headroom: Annotated[float, Gt(0), Le(1), Means("share of the latency limit that a better path may take")] = 0.9

    def faults(self) -> list[str]:
        """Refuse a cost that is the same for every path."""
        free = not self.latency_weight and not self.energy_weight
        return ["'latency_weight' and 'energy_weight' are both 0, one must be above 0"] if free else []

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Sense, predict, and switch where the trigger asks for it; new accuracies leave the trigger as it was."""
        objective = self.objective
        before = None if state is None else state.outlook
        slower, outlook = foresee(budget, Forecaster(self.forecaster), before, self._weights)
        if state is None or renamed(variants, state.variants):
            table = PathTable.of(variants)
            limits = self._limits(table, budget)
            which, flag = pick(table, slower, limits, objective)
            return which, LoopState(table, variants, which, budget.now_s, goals_of(limits), outlook, flag=flag)
        trigger = Trigger(self.dwell_s, self.patience, self.headroom)
        state = state.told(variants)
        after = respond(state, budget.now_s, slower, self._limits(state.table, budget), objective, trigger)
        return after.which, replace(after, outlook=outlook)

    def forecast(self, state: Any) -> float | None:
        """Return the load that is expected at the next reading: the index, where that stands for the CPU load."""
        return None if state is None else state.outlook.expected

    @property
    def objective(self) -> PathObjective:
        return PathObjective(self.latency_weight, self.energy_weight, self.tolerance, self.mode)

    @property
    def _weights(self) -> IndexWeights | None:
        """Return the weights of the load index; None where predictions go by the CPU load."""
        if self.load_measure == "cpu":
            return None
        return IndexWeights(self.cpu_weight, self.gpu_weight, self.memory_weight)

    def _limits(self, table: PathTable, budget: Budget) -> PathLimits:
        return limits_of(budget, float(table.accuracy.max()) - self.accuracy_loss)
