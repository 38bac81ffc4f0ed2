"""Thrifty: the cheapest network that is accurate enough, instead of the most accurate one that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.usnet import UsNet


@dataclass(frozen=True)
class Thrifty(UsNet):
    """Build US-Net's widths; run the one of least energy within a loss of accuracy."""

    loss: Annotated[float, Ge(0), Le(1), Means("accuracy given up for energy", "fraction")] = 0.05

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose a network where the scheduler chooses none; pure, called in the driver."""
        best, state = super().prefer(variants, budget, state)
        goal = (variants[best].accuracy or 0.0) - self.loss
        enough = [which for which, one in enumerate(variants) if (one.accuracy or 0.0) >= goal]
        return min(enough, key=lambda which: variants[which].energy_j), state
