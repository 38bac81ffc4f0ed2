"""Base of members whose networks differ in width."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt, Le

from driftlab.platform.core.parameters import BEFORE, CHOOSING, Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import (
    CHOOSER,
    PREDICTOR,
    Budget,
    Chooser,
    Profile,
    Scaling,
    Size,
    check_index,
    most_accurate,
)
from driftlab.platform.scaling.predicting import Predictor

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.scaling.growing import PruningContext


Keep = tuple[float, ...]
KEEP: Keep = (0.8, 0.6, 0.45, 0.3, 0.2)  # shares of the original width


@dataclass(frozen=True)
class WidthScaling(Scaling):
    """Base of members that build a `pruning.family.Family`; only building differs between them."""

    keep_ratios: Annotated[Keep, Gt(0), Le(1), Means("shares of the filters, one per network, falling")] = KEEP
    chooser: Annotated[Chooser, CHOOSER] = field(default="own", metadata={CHOOSING: True, BEFORE: "own"})
    predictor: Annotated[Predictor, PREDICTOR] = field(default="law", metadata={CHOOSING: True, BEFORE: "law"})

    needs_data = True

    def faults(self) -> list[str]:
        """Return a fault if the shares do not fall."""
        falls = all(small < large for large, small in itertools.pairwise(self.keep_ratios))
        return (
            []
            if self.keep_ratios and falls
            else [f"'keep_ratios' is {self.keep_ratios}, must be one or more shares that fall"]
        )

    @abstractmethod
    def grow_family(self, context: PruningContext) -> Family:
        """Train the networks of the family and measure them."""

    def build(self, model: nn.Module, data: DataSplits | None) -> Family:
        from driftlab.platform.networks.pruning.surgery import groups
        from driftlab.platform.networks.training.training_loop import deterministic
        from driftlab.platform.scaling.growing import PruningContext

        assert data is not None
        with deterministic(data.seed):
            return self.grow_family(PruningContext(model, groups(model, data.example(model)), data))

    def select(self, family: Family, budget: Budget) -> nn.Module:
        """Return the budget's network, or else the most accurate that fits in memory."""
        from driftlab.platform.networks.pruning.family import extract

        if budget.variant is not None:
            return extract(family, check_index(budget.variant, len(family)))
        limit = budget.memory_bytes
        fitting = [which for which in range(len(family)) if limit is None or family.memory_bytes(which) <= limit]
        return extract(family, most_accurate(family.val_accuracies, fitting))

    def absorb(self, family: Family, variant: nn.Module) -> Family:
        from driftlab.platform.networks.pruning.family import absorb

        return absorb(family, variant)

    def profile(self, family: Family, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.cost_counter import count_cost
        from driftlab.platform.networks.pruning.family import extract

        costs = [count_cost(extract(family, which), *size) for which in range(len(family))]
        return tuple(
            Profile(f"{which + 1}/{len(family)}", val, family.memory_bytes(which), cost, test)
            for which, (cost, val, test) in enumerate(
                zip(costs, family.val_accuracies, family.test_accuracies, strict=True)
            )
        )

    def store(self, family: Family) -> Weights:
        from driftlab.platform.networks.pruning.family import store

        return store(family)

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Family:
        from driftlab.platform.networks.pruning.family import restore

        return restore(model, arrays, size)
