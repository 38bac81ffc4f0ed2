"""NEO: the head's input is centred by the mean of all features seen so far.

Differs from the paper: `decay` may let the mean forget; a head that is a convolution of one pixel counts as linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Answered, Batch
from driftlab.platform.adaptation.memory import MethodMemory, as_tensors
from driftlab.platform.adaptation.of_head import OfHead
from driftlab.platform.adaptation.stream import NO_FRAMES, Rows, device_inputs
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.heads import linear_head

if TYPE_CHECKING:
    import torch
    from torch import nn

    Held = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Neo(OfHead):
    """Subtract the running mean of features before the head."""

    decay: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the mean; 0: of all frames the same")
    ] = 0.0

    only_on_stream = True

    def changes(self, model: nn.Module) -> list[str]:
        return []

    def unfit(self, model: nn.Module, batch: Batch) -> str:
        if not len(batch.images):
            return NO_FRAMES
        return "" if linear_head(model, per_place=True) else "the network has no linear head"

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Predict with the mean of everything until the batch, or until the frame where answers do not wait."""
        if self.unfit(model, batch):
            return super().answer(model, state, batch)
        answers = batch.task.blank(len(batch.images), *batch.images.shape[1:3])
        held = as_tensors(state.held)
        size = 1 if self.answers == "now" else len(batch.images)
        for start in range(0, len(batch.images), size):
            rows = np.arange(start, start + size)
            outputs = self.take(model, state, batch, rows, held)[1]
            answers[rows] = batch.task.answers(outputs, *batch.images.shape[1:3])
        return Answered(answers, state, Passes((size,) * (len(batch.images) // size)))

    def take(
        self, model: nn.Module, state: MethodMemory, batch: Batch, rows: Rows, held: Held
    ) -> tuple[Held, torch.Tensor]:
        """Run frames with a mean to which they belong; return it and the outputs."""
        import torch

        from driftlab.platform.networks.predict import evaluating

        with evaluating(model), torch.no_grad(), self._centred(model, held) as moved:
            outputs: torch.Tensor = model(device_inputs(model, batch, rows))
        return moved, outputs

    @contextmanager
    def _centred(self, model: nn.Module, held: Held) -> Iterator[Held]:
        """Move the mean by the head's input, then subtract it."""
        from torch import nn

        head, moved = model.get_submodule(linear_head(model, per_place=True)), dict[str, Any]()

        def hook(_: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            place = -1 if isinstance(head, nn.Linear) else 1
            found = given[0].movedim(place, -1).flatten(0, -2)
            moved.update(self._moved(held, found))
            shape = [1] * given[0].dim()
            shape[place] = -1
            return (given[0] - moved["mean"].to(given[0].dtype).view(shape), *given[1:])

        handle = head.register_forward_pre_hook(hook)
        try:
            yield moved
        finally:
            handle.remove()

    def _moved(self, held: Held, found: torch.Tensor) -> Held:
        import torch

        before = float(held["count"]) if held else 0.0
        total = torch.tensor(before + len(found), dtype=torch.float64)
        newest = found.double().mean(dim=0)
        weight = self.decay if held and self.decay else len(found) / float(total)
        mean = torch.lerp(held["mean"].to(newest.device), newest, weight) if held else newest
        return {"mean": mean, "count": total}
