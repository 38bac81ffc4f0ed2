"""AdaBN: batch norms take the statistics of what the device sees instead of those of the source.

Differs from the paper: `momentum`, `batch` and `alpha` are variants from later work for streams, on which a pass over a
whole domain does not exist; `full` is the paper's, as a cumulative average.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.stream import NO_STEPS, OnStream, answer_by, follow, groups, unfit
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class AdaBn(OnStream):
    """Replace the statistics of batch norms."""

    variant: Annotated[Literal["momentum", "batch", "full", "alpha"], Means("which statistics batch norms use")] = (
        "momentum"
    )
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest batch, in variant momentum")] = 0.1
    alpha: Annotated[float, Ge(0), Le(1), Means("weight of the batch beside the source, in variant alpha")] = 0.1

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Answer by what is stored or, in `batch` and `alpha`, by statistics of the batch or of each frame alone."""
        if not self._forgets:
            return super().answer(model, state, batch)
        return answer_by(self._statistics(model), model, state, batch, alone=self.answers == "now")

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Follow groups of `stream_batch` frames, or the whole batch on the stream."""
        if why := unfit(model, batch):
            return Adapted(state, skipped=why, work=Passes())
        parts = groups(len(batch.images), phase, self.stream_batch)
        if not parts:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        if self._forgets:
            return self._only_answer(model, state, batch, phase)
        full = self.variant == "full"
        return follow(model, state, batch, parts, momentum=None if full else self.momentum, anew=full)

    def work_of(self, phase: Phase, frames: int) -> Passes | None:
        """Say how many frames go forward, of a network with batch norms."""
        if self._forgets and not self._answers_at_once(phase):
            return Passes()
        return Passes(tuple(len(rows) for rows in groups(frames, phase, self.stream_batch) if len(rows)), trained=())

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
        from driftlab.platform.networks.parts import blended, by_batch

        return blended(model, self.alpha) if self.variant == "alpha" else by_batch(model, keeps=False)
