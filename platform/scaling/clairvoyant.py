"""Clairvoyant bound: the most accurate path of a supernet that meets the deadline under the true load.

The true load until the next reading is not available on a device. The bound may switch at every reading, so the
difference to it is the cost of delayed readings and of hysteresis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling
from driftlab.platform.scaling.choosers import clairvoyant


@dataclass(frozen=True)
class Clairvoyant(PathScaling):
    """Clairvoyant bound: select by the true load until the next reading."""

    @property
    def uses_true_load(self) -> bool:
        return True

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Return the most accurate path in time under the coming load."""
        return clairvoyant(variants, budget), state
