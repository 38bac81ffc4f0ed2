"""Clairvoyant: the best path of a branched network by the true load until the next reading; a bound, not a method.

At each reading it runs the most accurate path that is in time by what the load is about to be, which no device knows,
and it may switch every time. What others lose to it they lose by sensing and by waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths
from driftlab.platform.scaling.selecting import PathObjective, PathTable, limits_of, pick, predicted_slowdown


@dataclass(frozen=True)
class Clairvoyant(OfPaths):
    """Run the most accurate path that will be in time."""

    @property
    def foresees(self) -> bool:
        return True

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose by the load to come."""
        true = budget if budget.coming is None else replace(budget, load=(budget.coming,))
        limits = limits_of(true, 0.0)
        return pick(PathTable.of(variants), predicted_slowdown(true), limits, PathObjective(tolerance=0.0))[0], state
