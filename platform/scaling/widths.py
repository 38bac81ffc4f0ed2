"""The common part of members whose networks differ in width only."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index, most_accurate

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.scaling.growing import PruningContext


Keep = tuple[float, ...]
KEEP: Keep = (0.8, 0.6, 0.45, 0.3, 0.2)  # shares of the original width


@dataclass(frozen=True)
class OfWidths(Scaling):
    """Base of members that build a `pruning.family.Family`; the other verbs are the same for all."""

    keep: Annotated[Keep, Gt(0), Le(1), Means("share of the filters that each network keeps, falling")] = KEEP

    needs_data = True

    def faults(self) -> list[str]:
        """Name a list of shares that does not fall."""
        falls = all(small < large for large, small in itertools.pairwise(self.keep))
        return [] if self.keep and falls else [f"'keep' is {self.keep}, must be one or more shares that fall"]

    @abstractmethod
    def grow_family(self, context: PruningContext) -> Family:
        """Train the family's networks, and measure them."""

    def build(self, model: nn.Module, data: Data | None) -> Family:
        from driftlab.platform.networks.pruning.surgery import groups
        from driftlab.platform.networks.training.training_loop import deterministic
        from driftlab.platform.scaling.growing import PruningContext

        assert data is not None
        with deterministic(data.seed):
            return self.grow_family(PruningContext(model, groups(model, data.example(model)), data))

    def select(self, family: Family, budget: Budget) -> nn.Module:
        """Return the chosen network; without a choice the most accurate one that fits into memory."""
        from driftlab.platform.networks.pruning.family import extract

        return extract(family, chosen(family, budget))

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


def chosen(family: Family, budget: Budget) -> int:
    """Return the network that the budget names, or the most accurate one that fits into memory."""
    if budget.variant is not None:
        return check_index(budget.variant, len(family))
    limit = budget.memory_bytes
    good = [which for which in range(len(family)) if limit is None or family.memory_bytes(which) <= limit]
    return most_accurate(family.val_accuracies, good)
