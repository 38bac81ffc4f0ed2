"""Contrast: batch norms follow the stream, but not through frames that show too little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.onda import Onda
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Contrast(Onda):
    """Move the statistics of batch norms as ONDA does, where the frames have contrast enough."""

    least: Annotated[float, Ge(0), Le(128), Means("lowest standard deviation of the pixels", "grey levels")] = 20.0

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Leave a dark batch out; a reason instead of work says so in the table `adaptations`."""
        contrast = float(batch.images.std())
        if contrast < self.least:
            return Adapted(state, skipped=f"contrast {contrast:.1f} is below {self.least:g}", passes=Passes())
        return super().adapt(model, state, batch, phase)

    def passes_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return None: the passes depend on the frames."""
        return None
