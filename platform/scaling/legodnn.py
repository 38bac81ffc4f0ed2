"""LegoDNN (Han et al., MobiCom 2021): select one variant per block.

Accuracy, latency and memory of the blocks are added up.

The profiler measures the accuracy drop and the latency and memory reduction of each variant of each block, and assumes
that they add up. Under load each block slows by its own factor, which the latencies measured in the session reveal. The
optimizer selects the combination with the smallest accuracy drop within the limits; a limit that no combination meets
is relaxed in steps, memory before latency. Sums are estimates, so combinations whose own size exceeds the free memory
are excluded first.

Differs from the paper: blocks are the stages of a supernet without exits, and their variants operators unless `space`
is `lego`, where filters are pruned; combinations are compared one by one instead of by a solver; block times follow
from the times of whole networks; changed accuracies change the profiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import TimedInference, Variant
from driftlab.platform.scaling.base import Budget, fit_memory
from driftlab.platform.scaling.branches import PathScaling, deep_paths
from driftlab.platform.scaling.selecting import predicted_slowdown, same
from driftlab.platform.world.load import slowdown

Floats = npt.NDArray[np.float64]
Names = tuple[str, ...]
SLACK = 1e-12  # of comparisons between sums
SLOWDOWN_RIDGE = 1e-3  # of the slowdowns of blocks: few measurements leave them near their common slowdown
MEMORY_STEP_BYTES = 2.0**20 / 10  # step in which a memory limit is relaxed


@dataclass(frozen=True, eq=False)
class BlockProfiles:
    """The profiles of each block's variants, added up for every combination.

    The last variant is the original.
    """

    variants: Sequence[Variant]
    paths: Mapping[Names, int]
    options: Sequence[Sequence[str]]

    @property
    def original(self) -> Names:
        return tuple(names[-1] for names in self.options)

    def exchanged(self, path: Names, block: int, name: str) -> Variant:
        """Return the combination with the variant of one block exchanged."""
        exchanged = (*path[:block], name, *path[block + 1 :])
        return self.variants[self.paths[exchanged]]

    def accuracy_drop(self, block: int, name: str) -> float:
        """Return the mean accuracy drop in three environments.

        The other blocks are original, of median size, or the smallest.
        """
        median = tuple(names[::-1][(len(names) - 1) // 2] for names in self.options)  # counted from the original
        environments = [self.original, median, tuple(names[0] for names in self.options)]
        original = self.options[block][-1]
        pairs = [(self.exchanged(path, block, original), self.exchanged(path, block, name)) for path in environments]
        return float(np.mean([(before.accuracy or 0.0) - (after.accuracy or 0.0) for before, after in pairs]))

    @cached_property
    def blocks_s(self) -> Floats:
        """Return the isolated time of each original block, by which the network that ends there is slower."""
        by_name, whole_s = {one.name: one.latency_s for one in self.variants}, self._whole.latency_s
        ends_s = [by_name.get(".".join(self.original[: block + 1])) for block in range(len(self.options))]
        equal_s = np.full(len(self.options), whole_s / len(self.options))
        found_s: Floats = equal_s if None in ends_s else np.diff(np.array([0.0, *ends_s], np.float64))
        return found_s if (found_s > 0).all() else equal_s

    @cached_property
    def times_s(self) -> Floats:
        """Return the isolated time of each block in each combination, by the savings of its variants."""
        saved = [
            {name: self._whole.latency_s - self.exchanged(self.original, block, name).latency_s for name in names}
            for block, names in enumerate(self.options)
        ]
        savings = np.array([[saved[block][name] for block, name in enumerate(path)] for path in self.paths])
        times_s: Floats = self.blocks_s - savings
        return times_s

    @cached_property
    def totals(self) -> tuple[list[int], Floats, Floats]:
        """Return the number, accuracy drop and memory of each combination, as sums over its blocks."""
        blocks = {
            (block, name): (
                self.accuracy_drop(block, name),
                self._whole.memory_bytes - self.exchanged(self.original, block, name).memory_bytes,
            )
            for block, names in enumerate(self.options)
            for name in names
        }
        sums = np.array([np.sum([blocks[each] for each in enumerate(path)], axis=0) for path in self.paths])
        accuracy_drop, memory = sums.T
        return list(self.paths.values()), accuracy_drop, self._whole.memory_bytes - memory

    def slowdowns(self, timed: Sequence[TimedInference]) -> Floats:
        """Return the slowdown of each block over that of all networks; 1 without measurements.

        A measured latency is the sum of its blocks' times by their slowdowns (ridge
        regression around the common slowdown).
        """
        rows = [(self._row[one.network], one) for one in timed if one.network in self._row]
        if not rows:
            return np.ones(len(self.options))
        parts = np.stack([self.times_s[row] / self.times_s[row].sum() for row, _ in rows])
        measured = np.array([one.taken_s / one.idle_s * slowdown([one.reading]) for _, one in rows])
        common = float(measured.mean())
        gram = parts.T @ parts + SLOWDOWN_RIDGE * np.eye(parts.shape[1])
        found: Floats = common + np.linalg.solve(gram, parts.T @ (measured - common))
        return np.maximum(found, 0.0)

    @cached_property
    def _row(self) -> Mapping[str, int]:
        return {".".join(path): row for row, path in enumerate(self.paths)}

    @property
    def _whole(self) -> Variant:
        return self.variants[self.paths[self.original]]


@dataclass(frozen=True)
class LegoDnn(PathScaling):
    """LegoDNN (MobiCom 2021): select one variant per block from additive accuracy and latency profiles."""

    latency_step_s: Annotated[float, Gt(0), Le(3600), Means("step in which a latency limit is relaxed", "s")] = field(
        default=0.1, metadata={CHOOSING: True}
    )

    version = 3

    def select_within(
        self, variants: Sequence[Variant], budget: Budget, state: BlockProfiles | None
    ) -> tuple[int, Any]:
        """Select a combination; repeated at every reading. `state` holds the profiles until accuracies change."""
        profiles = state if state and same(variants, state.variants) else BlockProfiles(variants, *deep_paths(variants))
        numbers, accuracy_drop, memory = profiles.totals
        times_s = profiles.times_s @ self._block_slowdowns(profiles, budget)
        latency_s = np.minimum(times_s * predicted_slowdown(budget), np.finfo(np.float64).max)
        fits = np.isin(numbers, fit_memory(variants, numbers, budget))
        memory_limit = relaxed(budget.memory_bytes, float(memory[fits].min()), MEMORY_STEP_BYTES)
        fits &= memory <= memory_limit + SLACK
        limit_s = relaxed(budget.latency_s, float(latency_s[fits].min()), self.latency_step_s)
        fits &= latency_s <= limit_s * (1 + SLACK)
        return numbers[int(np.where(fits, accuracy_drop, np.inf).argmin())], profiles

    def _block_slowdowns(self, profiles: BlockProfiles, budget: Budget) -> Floats:
        """Return the slowdown of each block; 1 where another predictor has corrected the latencies already."""
        return profiles.slowdowns(budget.timed if self.predictor == "law" else ())


def relaxed(limit: float | None, smallest: float, step: float) -> float:
    """Return a limit raised in steps until it admits the smallest value.

    A limit that admits it is returned as it is.
    """
    if limit is None:
        return math.inf
    if limit >= smallest:
        return limit
    steps = (smallest - limit) / step
    return max(smallest, limit + step * math.ceil(steps)) if math.isfinite(steps) else smallest
