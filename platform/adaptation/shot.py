"""SHOT: features adapt so that the frozen head classifies frames with confidence and variety.

In phases each frame also learns the class of the nearest feature centroid. On the stream there is one step per
batch without pseudo-labels: centroids need many frames of every class.

Differs from the paper: the network is used as it is, without a bottleneck and a weight-normalised head of the
method's own; entropies have no epsilon; only batch norms leave evaluation mode; one learning rate for all that learns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.features import FeaturePass
    from driftlab.platform.networks.vector import Flat


@dataclass(frozen=True)
class Shot(stream.OnStream):
    """Maximise information with all weights but the head's, and train on pseudo-labels in phases."""

    iterations: stream.PhaseSteps = 60
    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 32
    relabel: Annotated[int, Ge(1), Means("steps after which a phase finds pseudo-labels anew")] = 15
    learning_rate: stream.StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("Nesterov momentum of the steps")] = 0.9
    weight_decay: Annotated[float, Ge(0), Le(1), Means("weight decay of the steps")] = 1e-3
    cls_par: Annotated[float, Ge(0), Le(100), Means("weight of the pseudo-labels in the loss")] = 0.3
    div_weight: Annotated[float, Ge(0), Le(100), Means("weight of the variety of answers in the loss")] = 1.0
    bn_momentum: stream.NormMomentum = 0.1

    tasks = ("classification",)

    def changes(self, model: nn.Module) -> list[str]:
        return list(model.state_dict())

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        why = _unfit(batch)
        lessons = [] if why else list(stream.mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=why or stream.NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, lessons, on_stream=phase.on_stream)

    def _learn(
        self, model: nn.Module, state: stream.StreamMemory, batch: Batch, lessons: list[stream.Rows], *, on_stream: bool
    ) -> Adapted:
        from driftlab.platform.networks.module_utils import coordinates, copy_entries, restore_entries
        from driftlab.platform.networks.vector import layout_of

        done, layout, layers = stream.WorkLog(), layout_of(model), dict[str, None]()
        head = _head(model, state, batch, done)
        learning = [name for name in layout.names if not name.startswith(f"{head}." if head else "")]
        if not learning:
            return Adapted(state, skipped="all that learns is the head, which SHOT freezes", work=done.passes(state))
        before = copy_entries(model, state.source)
        with stream.part_learning(model, learning, keeps=True, momentum=self.bn_momentum) as (flat, passed):
            labels = PseudoLabels(model, batch, self.batch, done)
            step, speed = self._stepping(flat, state.moments if on_stream else (), 0 if on_stream else len(lessons))

            def loss_of(rows: stream.Rows) -> torch.Tensor:
                if not on_stream and self.cls_par and len(done.losses) % self.relabel == 0:
                    with passed.resting():
                        labels.find()
                seen, loss = self.lesson(model, batch, rows, labels.of(rows))
                layers.update(dict.fromkeys(seen.layers))
                return loss

            stream.descend(lessons, loss_of, step, done)
            moments = stream.split_by_name((speed.cpu().numpy(),), flat.layout)
        after = replace(state, moments=moments, steps=state.steps + len(done.backward), head=head)
        owners = {name.rpartition(".")[0] for name in learning}
        work = done.passes(after, [name for name in layers if name in owners], labels.kept_bytes)
        if why := stream.invalid_reason(model, after, passed, done):
            restore_entries(model, before)
            return Adapted(state, skipped=why, work=work)
        after = after if on_stream else replace(after, moments=())  # every phase begins without momentum
        return Adapted(after, len(done.losses), tuple(done.losses), coordinates(layout, learning), work=work)

    def lesson(
        self, model: nn.Module, batch: Batch, rows: stream.Rows, labels: torch.Tensor | None
    ) -> tuple[FeaturePass, torch.Tensor]:
        """Return a pass over some frames, and its loss."""
        from torch.nn import functional as F

        from driftlab.platform.networks.features import features

        seen = features(model, stream.device_inputs(model, batch, rows))
        loss = information(seen.outputs, self.div_weight)
        return seen, loss if labels is None else loss + self.cls_par * F.cross_entropy(seen.outputs, labels)

    def _stepping(self, flat: Flat, moments: Sequence[Weights], length: int) -> tuple[Callable[[], None], torch.Tensor]:
        """Return the step of SGD with Nesterov's momentum; its rate falls over a phase."""
        import torch

        speed = torch.tensor(stream.flatten_moments(moments, flat.layout, 1)[0], device=flat.weights.device)
        counted = itertools.count(1)

        def step() -> None:
            rate = self.learning_rate * (1 + 10 * next(counted) / length) ** -0.75 if length else self.learning_rate
            gradient = flat.gradients.add_(flat.weights, alpha=self.weight_decay)
            speed.mul_(self.momentum).add_(gradient)
            flat.weights.add_(gradient.add_(speed, alpha=self.momentum), alpha=-rate)
            flat.gradients.zero_()

        return step, speed


class PseudoLabels:
    """Pseudo-labels of all frames of a phase, with the features that they come from."""

    def __init__(self, model: nn.Module, batch: Batch, size: int, done: stream.WorkLog) -> None:
        self._model, self._batch, self._size, self._done = model, batch, size, done
        self._labels: torch.Tensor | None = None
        self.kept_bytes = 0

    def find(self) -> None:
        """Compute the features of every frame once, and label it."""
        import torch

        from driftlab.platform.networks.features import features

        frames = len(self._batch.images)
        parts = [np.arange(start, min(start + self._size, frames)) for start in range(0, frames, self._size)]
        with torch.no_grad():
            seen = [features(self._model, stream.device_inputs(self._model, self._batch, rows)) for rows in parts]
            found, outputs = (torch.cat([getattr(each, what) for each in seen]) for what in ("features", "outputs"))
            self._labels = pseudo_labels(found, outputs)
        self._done.forward.extend(len(rows) for rows in parts)
        self.kept_bytes = sum(each.nbytes for each in (found, outputs, self._labels))

    def of(self, rows: stream.Rows) -> torch.Tensor | None:
        """Return the labels of some frames; None before the first labelling."""
        return None if self._labels is None else self._labels[rows]


def information(outputs: torch.Tensor, div_weight: float = 1.0) -> torch.Tensor:
    """Return the negative mutual information: high for undecided frames, and for one prediction for all frames."""
    import torch
    from torch.nn import functional as F

    shares = torch.logsumexp(F.log_softmax(outputs, dim=1), dim=0) - math.log(len(outputs))
    variety = -(shares.exp() * shares).sum()
    return stream.entropies(outputs).mean() - div_weight * variety


def pseudo_labels(features: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Label every frame by the nearest centroid by cosine, in two rounds; classes without frames have no centroid.

    The soft centroid of a class that is never predicted lies in the middle of all features and would attract frames.
    """
    import torch
    from torch.nn import functional as F

    given = F.normalize(torch.cat([features, torch.ones_like(features[:, :1])], dim=1))
    weights = outputs.softmax(dim=1)
    for _ in range(2):
        members = F.one_hot(weights.argmax(dim=1), outputs.shape[1]).sum(dim=0)
        centroids = weights.T @ given / (1e-8 + weights.sum(dim=0))[:, None]
        likeness = given @ F.normalize(centroids).T
        labels = likeness.masked_fill(members == 0, -math.inf).argmax(dim=1)
        weights = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return labels


def _head(model: nn.Module, state: stream.StreamMemory, batch: Batch, done: stream.WorkLog) -> str:
    """Return the network's head; the first call runs one frame."""
    from driftlab.platform.networks.features import head_of

    if state.head is not None:
        return state.head
    done.forward.append(1)
    return head_of(model, stream.device_inputs(model, batch, np.arange(1)))


def _unfit(batch: Batch) -> str:
    if not len(batch.images):
        return stream.NO_FRAMES
    if batch.task.name != "classification":
        return f"SHOT names whole frames, the task is {batch.task.name}"
    return "one frame says nothing about the variety of answers" if len(batch.images) == 1 else ""
