"""The common parts of members that follow the stream by the input of the last layer, without gradients."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, as_tensors, own_arrays
from driftlab.platform.adaptation.stream import NO_STEPS, AnswerTime, Remembering, Rows, WorkLog, split_groups
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import nn

    Held = dict[str, torch.Tensor]


@dataclass(frozen=True)
class OfHead(Remembering):
    """Base of these members: one group of frames after another moves the arrays that the member holds."""

    answers: AnswerTime = "batch"

    @abstractmethod
    def unfit(self, model: nn.Module, batch: Batch) -> str:
        """Say why nothing can be learned from a batch; nothing if it can."""

    @abstractmethod
    def take(
        self, model: nn.Module, state: MethodMemory, batch: Batch, rows: Rows, held: Held
    ) -> tuple[Held, torch.Tensor]:
        """Run frames; return the arrays to which they belong, and the outputs."""

    def install(self, model: nn.Module, state: MethodMemory, held: Held, classes: int) -> npt.NDArray[np.bool_] | None:
        """Put what is held into the network; return which coordinates changed."""
        return None

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        parts = split_groups(len(batch.images), phase, self.stream_batch)
        if why := self.unfit(model, batch) or ("" if parts else NO_STEPS):
            return Adapted(state, skipped=why, work=Passes())
        model.eval()
        done, held = WorkLog(), as_tensors(state.held)
        for rows in parts:
            held, outputs = self.take(model, state, batch, rows, held)
            done.forward.append(len(rows))
            if not bool(outputs.isfinite().all()):
                return Adapted(state, skipped="its features are not finite", work=done.passes(state))
        changed = self.install(model, state, held, outputs.shape[1])
        after = replace(state, held=own_arrays(held), steps=state.steps + len(parts))
        at_once = phase.on_stream and self.answers == "batch"
        answers = batch.task.answers(outputs, *batch.images.shape[1:3]) if at_once else None
        return Adapted(after, len(parts), changed=changed, work=done.passes(after, ()), answers=answers)
