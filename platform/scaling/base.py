"""Which network fits the budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Budget:
    """What one application may use in a window; None means that nothing limits it."""

    latency_s: float | None = None
    memory_bytes: int | None = None
    energy_j: float | None = None


class Scaling(ABC):
    """Base of the family; a member is a frozen dataclass that imports torch inside its methods."""

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """Make the family of networks that this model can become."""

    @abstractmethod
    def select(self, family: Any, budget: Budget) -> nn.Module:
        """Choose the network to run within the budget."""

    @abstractmethod
    def absorb(self, family: Any, variant: nn.Module) -> None:
        """Carry what a variant has learned back into the family."""
