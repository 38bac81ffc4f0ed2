"""Thrifty: select the network with the lowest energy within a loss of accuracy."""

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
    """US-Net that runs the width with the lowest energy within a loss of accuracy."""

    loss: Annotated[float, Ge(0), Le(1), Means("accuracy given up for energy", "fraction")] = 0.05

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Select the network if the scheduler leaves it open; a pure function, called in the driver."""
        best, state = super().select_within(variants, budget, state)
        goal = (variants[best].accuracy or 0.0) - self.loss
        enough = [which for which, one in enumerate(variants) if (one.accuracy or 0.0) >= goal]
        return min(enough, key=lambda which: variants[which].energy_j), state
