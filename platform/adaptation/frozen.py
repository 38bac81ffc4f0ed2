"""Frozen, the null member of adaptation: the weights never change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Frozen(Adaptation):
    """Leave the weights unchanged."""

    labels, learns_on_stream = "none", False

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> None:
        return None

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return Adapted(state, passes=Passes())

    def reset(self, model: nn.Module, state: Any) -> Any:
        return state
