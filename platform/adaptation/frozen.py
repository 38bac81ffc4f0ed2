"""Frozen: the weights stay as they were built (the null member)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adaptation, Adapted, Batch, Phase

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Frozen(Adaptation):
    """Leave the weights alone."""

    needs_labels = False

    def prepare(self, model: nn.Module) -> None:
        return None

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return Adapted(state)

    def reset(self, model: nn.Module, state: Any) -> Any:
        return state
