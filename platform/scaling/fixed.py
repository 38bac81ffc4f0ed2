"""The null member: the student's network, for every budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index, single_profile

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits


@dataclass(frozen=True)
class Fixed(Scaling):
    """Run the student as built (null member)."""

    needs_data = False
    nested = False

    def build(self, model: nn.Module, data: DataSplits | None) -> nn.Module:
        return model

    def select(self, family: nn.Module, budget: Budget) -> nn.Module:
        check_index(budget.variant or 0, 1)
        return family

    def absorb(self, family: nn.Module, variant: nn.Module) -> nn.Module:
        return variant

    def profile(self, family: nn.Module, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.cost_counter import count_cost

        return single_profile(count_cost(family, *size))

    def store(self, family: nn.Module) -> Weights:
        from driftlab.platform.networks.predict import state_of

        return state_of(family)

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        from driftlab.platform.networks.predict import load

        load(model, arrays)
        return model
