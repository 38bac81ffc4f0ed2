"""Balance: entropy minimisation that weights frames by how rare their class is in the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import PredictOn, device_inputs, scales_and_shifts
from driftlab.platform.adaptation.learn import StreamAdaptation
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Memory:
    """The state between batches."""

    source: Weights  # the network before adaptation, for `reset`
    classes: npt.NDArray[np.float32]  # running distribution of the predicted classes; empty before the first batch


@dataclass(frozen=True)
class Balance(StreamAdaptation):
    """Minimise the entropy of predictions by the scales and shifts of batch norms, most for rare classes."""

    predict_on: PredictOn = "batch"
    learning_rate: Annotated[float, Gt(0), Means("step size")] = 1e-2
    decay: Annotated[float, Ge(0), Le(1), Means("weight of the past in the distribution of classes")] = 0.9

    tasks = ("classification",)

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> Any:
        """Copy the network and return the first state."""
        from driftlab.platform.networks.module_utils import copy_entries

        return Memory(copy_entries(model, model.state_dict()), np.empty(0, np.float32))

    def reset(self, model: nn.Module, state: Memory) -> Any:
        """Restore the network and return the first state."""
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return self.prepare(model)

    def adapt(self, model: nn.Module, state: Memory, batch: Batch, phase: Phase) -> Adapted:
        """Take one step, and return the predictions before it."""
        import torch

        from driftlab.platform.networks import vector

        names, before, frames = scales_and_shifts(model), vector.read(model), len(batch.images)
        if not names:
            return Adapted(state, skipped="the network has no batch norm that learns", passes=Passes())
        modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))
        weights = [dict(model.named_parameters())[name] for name in names]
        outputs = model(device_inputs(model, batch, np.arange(frames)))
        shares = outputs.softmax(dim=1)
        now = shares.detach().mean(dim=0).cpu().numpy()
        past = state.classes if len(state.classes) else now
        classes = self.decay * past + (1 - self.decay) * now
        rarity = torch.from_numpy(1 / classes).to(outputs)[shares.argmax(dim=1)]
        entropy = -(shares * outputs.log_softmax(dim=1)).sum(dim=1)
        loss = (rarity / rarity.mean() * entropy).mean()
        with torch.no_grad():
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.sub_(self.learning_rate * gradient)
        return Adapted(
            Memory(state.source, classes.astype(np.float32)),
            iterations=1,
            losses=(float(loss.detach()),),
            changed=vector.read(model) != before,
            passes=Passes(forward=(frames,), backward=(frames,), trained=modules),
            predictions=batch.task.predictions(outputs.detach(), *batch.images.shape[1:3]),
        )
