"""SNAP (NeurIPS 2025): trains every k-th batch on a memory of confident, central frames.

In between, batch norms use the memory's statistics, corrected where those of a batch are far away.

Differs from the paper: the threshold of confidence, which its text leaves open, is 0.5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase, Predicted
from driftlab.platform.adaptation.batches import (
    NO_STEPS,
    device_inputs,
    frames_reject,
    predict_with_statistics,
    scales_reject,
    split_groups,
)
from driftlab.platform.adaptation.memory import as_tensors, below, own_arrays, under
from driftlab.platform.adaptation.norms import MemoryNorm, normalise_with, record_statistics
from driftlab.platform.adaptation.wrapper import AdaptationWrapper, WrapperState, charge
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

Array = npt.NDArray[Any]
CENTRE_MOMENTUM = 0.9  # weight of the newest batch in the centre of the domain; the paper's value


@dataclass(frozen=True)
class Snap(AdaptationWrapper):
    """Train on every k-th batch, on confident frames close to the centre of their domain."""

    every_batches: Annotated[int, Ge(1), Means("batches from one training batch to the next")] = 10
    capacity: Annotated[int, Ge(2), Le(4096), Means("frames in the memory", "frames")] = 32
    confidence: Annotated[float, Ge(0), Le(1), Means("probability of its class that a frame must exceed")] = 0.5
    width: Annotated[
        float, Gt(0), Means("standard errors by which a batch may differ before statistics are corrected")
    ] = 4.0

    def __post_init__(self) -> None:
        """Classify whole frames, as the memory does."""
        super().__post_init__()
        object.__setattr__(self, "tasks", ("classification",))
        object.__setattr__(self, "needs", self.needs or "norms")
        object.__setattr__(self, "only_on_stream", True)

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict with the memory's statistics."""
        statistics = normalise_with(model, self._norms(state))
        return predict_with_statistics(statistics, model, state, batch, alone=self.predict_on == "frame")

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        why = scales_reject(model, batch) or frames_reject("Snap", batch)
        if why or not split_groups(len(batch.images), phase, self.stream_batch):
            return Adapted(state, skipped=why or NO_STEPS, passes=Passes())
        model.eval()
        outputs, places = self._observe(model, state, batch)
        if not bool(outputs.isfinite().all()):
            return charge(Adapted(state, skipped="its predictions are not finite"), before=len(batch.images))
        with_batch = phase.on_stream and self.predict_on == "batch"
        predictions = batch.task.predictions(outputs, *batch.images.shape[1:3]) if with_batch else None
        after, share = self._remember(state, batch, outputs.softmax(dim=1).cpu().numpy(), places)
        done = charge(self._learn(model, after, batch), before=len(batch.images), kept_bytes=after.kept_bytes)
        return replace(done, predictions=predictions, accepted=share, predicted_by=(1, 0))

    def _learn(self, model: nn.Module, state: WrapperState, batch: Batch) -> Adapted:
        """Train the wrapped member on the memory if due, and use the statistics of the memory."""
        waited, images = int(state.held["waited"]) + 1, state.held.get("image")
        later = replace(state, held={**state.held, "waited": np.array(waited)})
        if waited < self.every_batches or images is None or len(images) < 2:
            return Adapted(later, skipped=f"it learns from every {self.every_batches} batches", passes=Passes())
        memory = batch.showing(images)
        done = self.inner.adapt(model, state.inner, memory, Phase(on_stream=True))
        if not done.iterations:
            return replace(done, state=later)
        kept = {name: value for name, value in state.held.items() if not name.startswith("norm/")}
        statistics = self._statistics(model, memory)
        held = {**kept, "waited": np.array(0), **under("norm", statistics)}
        return charge(replace(done, state=WrapperState(done.state, held)), after=len(images) if statistics else 0)

    def begin(self, model: nn.Module) -> Weights:
        return {"waited": np.array(0)}

    def _observe(self, model: nn.Module, state: WrapperState, batch: Batch) -> tuple[torch.Tensor, Array]:
        """Predict a batch; return each frame's moments before the first norm too, [n, 2, channels]."""
        import torch

        from driftlab.platform.networks.module_utils import all_norms

        found: list[torch.Tensor] = []

        def hook(norm: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            if not found:
                last = isinstance(norm, torch.nn.LayerNorm)
                seen = given[0].movedim(-1, 1) if last else given[0]
                seen = seen.flatten(2) if seen.dim() > 2 else seen[..., None]
                found.append(torch.stack([seen.mean(dim=2), seen.var(dim=2, unbiased=False)], dim=1))

        handles = [norm.register_forward_pre_hook(hook) for norm in all_norms(model).values()]
        try:
            with torch.no_grad(), normalise_with(model, self._norms(state)):
                outputs = model(device_inputs(model, batch, np.arange(len(batch.images))))
        finally:
            for handle in handles:
                handle.remove()
        return outputs, found[0].cpu().numpy()

    def _remember(self, state: WrapperState, batch: Batch, shares: Array, places: Array) -> tuple[WrapperState, float]:
        """Store confident frames, drop those too many, then move the centre."""
        seen, held = places.mean(axis=0), dict(state.held)
        middle = held.get("middle", seen)
        fit = np.flatnonzero(shares.max(axis=1) > self.confidence)
        kept = [(held["image"][n], held["label"][n], held["place"][n]) for n in range(len(held.get("label", ())))]
        for row, label in zip(fit, shares[fit].argmax(axis=1), strict=True):
            kept.append((batch.images[row], label, places[row]))
            if len(kept) > self.capacity:
                kept.pop(_farthest(kept, int(label), middle))
        if kept:
            names = ("image", "label", "place")
            held |= {name: np.stack(column) for name, column in zip(names, zip(*kept, strict=True), strict=True)}
        middle = (1 - CENTRE_MOMENTUM) * middle + CENTRE_MOMENTUM * seen
        return replace(state, held={**held, "middle": middle}), len(fit) / len(shares)

    def _norms(self, state: WrapperState) -> MemoryNorm:
        return MemoryNorm(self.width, as_tensors(below("norm", state.held)), len(state.held.get("label", ())))

    def _statistics(self, model: nn.Module, memory: Batch) -> Weights:
        """Run the memory by its own statistics and record those of each batch norm; nothing without any."""
        import torch

        from driftlab.platform.networks.module_utils import batch_norms, normalise_by_batch

        if not batch_norms(model):
            return {}
        with torch.no_grad(), normalise_by_batch(model, keeps=False), record_statistics(model) as found:
            model(device_inputs(model, memory, np.arange(len(memory.images))))
        return own_arrays(found)


def _farthest(kept: list[tuple[Any, Any, Array]], label: int, middle: Array) -> int:
    """Return the place of the frame that leaves after one of a class has come, which may be the new one."""
    counts = Counter(int(one[1]) for one in kept)
    most = [each for each, count in sorted(counts.items()) if count == max(counts.values())]
    leaving = label if label in most else most[0]
    away = [distance(one[2], middle) if one[1] == leaving else -1.0 for one in kept]
    return int(np.argmax(away))


def distance(place: Array, middle: Array) -> float:
    """Return the Wasserstein distance of normal distributions by channel, from means and variances."""
    (mean, variance), (other, others) = place, middle
    return float(np.sqrt(((mean - other) ** 2 + (np.sqrt(variance) - np.sqrt(others)) ** 2).sum()))
