"""Clairvoyant bound: the most accurate path of a supernet that meets the deadline under the true load.

The true load until the next reading is not available on a device. The bound may switch at every reading, so the
difference to it is the cost of delayed readings and of hysteresis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling
from driftlab.platform.scaling.selecting import PathObjective, PathTable, limits_of, pick, predicted_slowdown


@dataclass(frozen=True)
class Clairvoyant(PathScaling):
    """Clairvoyant bound: select by the true load until the next reading."""

    @property
    def uses_true_load(self) -> bool:
        return True

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Return the most accurate path in time under the coming load."""
        true = budget if budget.coming is None else replace(budget, load=(budget.coming,))
        limits = limits_of(true, 0.0)
        return pick(PathTable.of(variants), predicted_slowdown(true), limits, PathObjective(tolerance=0.0))[0], state
