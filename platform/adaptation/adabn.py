"""AdaBN: batch norms use the statistics of the device's frames instead of those of the source.

Differs from the paper: `momentum`, `batch` and `alpha` are variants from later work for streams, which have no pass
over a complete domain; `full` is the paper's, as a cumulative average.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.stream import OfStatistics, Rows, StreamMemory, answer_by, follow_statistics
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class AdaBn(OfStatistics):
    """Replace the statistics of batch norms."""

    variant: Annotated[Literal["momentum", "batch", "full", "alpha"], Means("which statistics batch norms use")] = (
        "momentum"
    )
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest batch, in variant momentum")] = 0.1
    alpha: Annotated[float, Ge(0), Le(1), Means("weight of the batch beside the source, in variant alpha")] = 0.1

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Predict by stored statistics or, in `batch` and `alpha`, by those of the batch or of each frame alone."""
        if not self._forgets:
            return super().answer(model, state, batch)
        return answer_by(self._statistics(model), model, state, batch, alone=self.answers == "now")

    def move(self, model: nn.Module, state: StreamMemory, batch: Batch, parts: Sequence[Rows], phase: Phase) -> Adapted:
        if self._forgets:
            return self._only_answer(model, state, batch, phase)
        full = self.variant == "full"
        return follow_statistics(model, state, batch, parts, momentum=None if full else self.momentum, anew=full)

    def work_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the forward passes of a network with batch norms, none where nothing is kept or answered."""
        return Passes() if self._forgets and not self._answers_at_once(phase) else super().work_of(phase, frames)

    def _only_answer(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        why = f"variant {self.variant} keeps nothing from one batch to the next"
        if not self._answers_at_once(phase):
            return Adapted(state, skipped=why, work=Passes())
        answered = self.answer(model, state, batch)
        return Adapted(state, skipped=why, work=answered.work, answers=answered.answers)

    def _answers_at_once(self, phase: Phase) -> bool:
        return phase.on_stream and self.answers == "batch"

    @property
    def _forgets(self) -> bool:
        return self.variant in ("batch", "alpha")

    def _statistics(self, model: nn.Module) -> AbstractContextManager[Any]:
        from driftlab.platform.networks.module_utils import blend_statistics, normalise_by_batch

        return (
            blend_statistics(model, self.alpha) if self.variant == "alpha" else normalise_by_batch(model, keeps=False)
        )
