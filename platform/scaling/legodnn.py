"""LegoDNN: a network of blocks, for each of which one of several variants is chosen while the application runs.

What a variant loses in accuracy and saves in latency and memory is measured block by block and taken to add up. The
choice is the combination of least loss within the limits; a limit that no combination keeps is relaxed in steps, memory
before latency, and none that can be kept (Han et al., MobiCom 2021). Sums are estimates: combinations whose own size
exceeds the free memory are dropped before.

Differs from the paper: its blocks are the stages of a branched network without exits, their variants operators unless
`space` is `lego`, where filters are pruned; combinations are compared one by one instead of by a solver; latencies are
scaled by the sensed load; new accuracies bring new losses.
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
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget, held_in_memory
from driftlab.platform.scaling.branches import OfPaths, deep_paths
from driftlab.platform.scaling.selecting import predicted_slowdown, same

Floats = npt.NDArray[np.float64]
Names = tuple[str, ...]
SLACK = 1e-12  # of comparisons of sums


@dataclass(frozen=True, eq=False)
class BlockTable:
    """What each block's variants lose and save, added up for every combination; the last variant is the original."""

    variants: Sequence[Variant]
    paths: Mapping[Names, int]
    options: Sequence[Sequence[str]]

    @property
    def whole(self) -> Names:
        return tuple(names[-1] for names in self.options)

    def changed(self, path: Names, block: int, name: str) -> Variant:
        """Return the combination with one block's variant exchanged."""
        exchanged = (*path[:block], name, *path[block + 1 :])
        return self.variants[self.paths[exchanged]]

    def lost(self, block: int, name: str) -> float:
        """Average the loss of accuracy over three environments: the other blocks original, in the middle, smallest."""
        middle = tuple(names[::-1][(len(names) - 1) // 2] for names in self.options)  # counted from the original
        others = [self.whole, middle, tuple(names[0] for names in self.options)]
        original = self.options[block][-1]
        pairs = [(self.changed(path, block, original), self.changed(path, block, name)) for path in others]
        return float(np.mean([(one.accuracy or 0.0) - (other.accuracy or 0.0) for one, other in pairs]))

    @cached_property
    def sums(self) -> tuple[list[int], Floats, Floats, Floats]:
        """Return each combination's number, loss of accuracy, latency and memory, as its blocks add up."""
        whole = self.variants[self.paths[self.whole]]
        blocks = {
            (block, name): (
                self.lost(block, name),
                whole.latency_s - (one := self.changed(self.whole, block, name)).latency_s,
                whole.memory_bytes - one.memory_bytes,
            )
            for block, names in enumerate(self.options)
            for name in names
        }
        added = np.array([np.sum([blocks[each] for each in enumerate(path)], axis=0) for path in self.paths])
        lost, latency, memory = added.T
        return list(self.paths.values()), lost, whole.latency_s - latency, whole.memory_bytes - memory


@dataclass(frozen=True)
class LegoDnn(OfPaths):
    """Choose a variant for each block, by losses and savings that add up."""

    memory_step: Annotated[float, Gt(0), Le(1e9), Means("step in which a limit on memory is relaxed", "bytes")] = field(
        default=2.0**20 / 10, metadata={CHOOSING: True}
    )
    latency_step_s: Annotated[float, Gt(0), Le(3600), Means("step in which a limit on latency is relaxed", "s")] = (
        field(default=0.1, metadata={CHOOSING: True})
    )

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose anew at every reading; `state` is the table of blocks, which new accuracies replace."""
        known = state is not None and same(variants, state.variants)
        table = state if known else BlockTable(variants, *deep_paths(variants))
        numbers, lost, alone_s, memory = table.sums
        latency_s = np.minimum(alone_s * predicted_slowdown(budget), np.finfo(np.float64).max)
        held = np.isin(numbers, held_in_memory(variants, numbers, budget))
        room = relaxed(budget.memory_bytes, float(memory[held].min()), self.memory_step)
        held &= memory <= room + SLACK
        limit_s = relaxed(budget.latency_s, float(latency_s[held].min()), self.latency_step_s)
        good = held & (latency_s <= limit_s * (1 + SLACK))
        return numbers[int(np.where(good, lost, np.inf).argmin())], table


def relaxed(limit: float | None, least: float, step: float) -> float:
    """Raise a limit in steps until something keeps it; one that something keeps stays."""
    if limit is None:
        return math.inf
    if limit >= least:
        return limit
    steps = (least - limit) / step
    return max(least, limit + step * math.ceil(steps)) if math.isfinite(steps) else least
