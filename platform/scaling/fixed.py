"""Fixed: one network, whatever the budget (the null member)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.scaling.base import Budget, Scaling

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Fixed(Scaling):
    """Run the network as it was built."""

    def build(self, model: nn.Module) -> nn.Module:
        return model

    def select(self, family: nn.Module, budget: Budget) -> nn.Module:
        return family

    def absorb(self, family: nn.Module, variant: nn.Module) -> None:
        """Do nothing: the only variant is the family itself."""
