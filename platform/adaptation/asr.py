"""ASR (ICLR 2026): resets trained tensors when predictions collapse, more in a deeper collapse.

Differs from the paper: its regulariser of the wrapped member's loss is left out, since a policy has no access to that
loss; fewer than 4 classes have no resets, since the threshold is not above 0 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import device_inputs
from driftlab.platform.adaptation.objectives import entropies, samples_of
from driftlab.platform.adaptation.wrapper import AdaptationWrapper, WrapperState, charge, moved_since, outputs_of
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

MIN_CLASSES = 4


@dataclass(frozen=True)
class Asr(AdaptationWrapper):
    """Reset weights when predictions collapse, more of them after a stronger collapse."""

    start: Annotated[float, Gt(0), Le(1), Means("share of the classes in the first threshold")] = 0.5
    speed: Annotated[float, Ge(0), Le(1), Means("weight of a batch in the threshold")] = 0.15
    keep: Annotated[float, Ge(0), Le(1), Means("share of the trained tensors that a slight collapse keeps")] = 0.5
    reset_slope: Annotated[float, Ge(0), Means("decrease of that share per nat of a deeper collapse")] = 20.0

    def begin(self, model: nn.Module) -> Weights:
        from driftlab.platform.networks.predict import state_of

        return {f"source/{name}": value for name, value in state_of(model).items()}

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.networks.vector import read

        before = read(model)
        with outputs_of(model) as seen:
            done = self._wrapped(model, state, batch, phase)
        if not done.iterations or not seen or seen[0].shape[1] < MIN_CLASSES or len(seen[0]) != len(batch.images):
            return done
        outputs = samples_of(seen[0])
        spread = float(entropies(outputs.mean(dim=0)[None]))
        first = math.log(outputs.shape[1] * self.start)
        threshold = float(state.held["threshold"]) if "threshold" in state.held else first
        if spread < threshold:
            after = self._return(model, done.state, done.changed, self.share(threshold - spread), first)
            return moved_since(model, before, replace(done, state=after))
        other = float((outputs.argmax(dim=1) != self._source_labels(model, state, batch)).float().mean())
        weight = 1 - self.speed + self.speed * other
        held = {**state.held, "threshold": np.array(weight * threshold + (1 - weight) * spread)}
        return charge(replace(done, state=replace(done.state, held=held)), after=len(batch.images))

    def share(self, depth: float) -> float:
        """Return the share of the trained tensors that stay at a depth below the threshold, in nats."""
        return max(self.keep - self.reset_slope * depth, 0.0)

    def _return(self, model: nn.Module, state: WrapperState, changed: Any, share: float, first: float) -> WrapperState:
        """Restore all but the first trained tensors, and begin with a fresh member."""
        from driftlab.platform.networks.module_utils import copy_entries, restore_entries
        from driftlab.platform.networks.vector import layout_of

        spans = layout_of(model).spans
        trained = [name for name, span in spans.items() if changed is not None and changed[span].any()]
        kept = copy_entries(model, trained[: math.floor(share * len(trained))])
        after = self.reset(model, state)
        restore_entries(model, kept)
        return replace(after, held={**after.held, "threshold": np.array(first)})

    def _source_labels(self, model: nn.Module, state: WrapperState, batch: Batch) -> torch.Tensor:
        """Return the classes that the source network predicts."""
        import torch

        from driftlab.platform.networks.module_utils import restore_entries
        from driftlab.platform.networks.predict import evaluating, state_of

        now = state_of(model)
        restore_entries(
            model, {name.removeprefix("source/"): value for name, value in state.held.items() if "/" in name}
        )
        with evaluating(model), torch.no_grad():
            outputs = samples_of(model(device_inputs(model, batch, np.arange(len(batch.images)))))
        restore_entries(model, now)
        return outputs.argmax(dim=1)
