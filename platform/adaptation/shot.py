"""SHOT (ICML 2020): adapts features with entropy and diversity losses, head frozen.

In phases each frame also learns the class of the nearest feature centroid. On the stream there is one step per
batch without pseudo-labels: centroids need many frames of every class.

Differs from the paper: the network is used as it is, without a bottleneck and a weight-normalised head of the
method's own; entropies have no epsilon; only batch norms leave evaluation mode; one learning rate for all that learns.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.batches import NormMomentum, PhaseSteps, Rows, StepSize, frames_reject, in_parts
from driftlab.platform.adaptation.learn import LearningAdaptation, StreamAdaptation
from driftlab.platform.adaptation.objectives import information
from driftlab.platform.core.parameters import Means
from driftlab.platform.networks.training.descent import Adam, Nesterov

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.module_utils import NormRecord


@dataclass(frozen=True)
class Shot(LearningAdaptation, StreamAdaptation):
    """Maximise information with all weights but the head's, and train on pseudo-labels in phases."""

    iterations: PhaseSteps = 60
    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 32
    relabel: Annotated[int, Ge(1), Means("steps after which a phase computes new pseudo-labels")] = 15
    learning_rate: StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("Nesterov momentum of the steps")] = 0.9
    weight_decay: Annotated[float, Ge(0), Le(1), Means("weight decay of the steps")] = 1e-3
    cls_par: Annotated[float, Ge(0), Le(100), Means("weight of the pseudo-labels in the loss")] = 0.3
    div_weight: Annotated[float, Ge(0), Le(100), Means("weight of the diversity of predictions in the loss")] = 1.0
    bn_momentum: NormMomentum = 0.1
    optimiser: Annotated[Literal["nesterov", "adam"], Means("rule of the steps; adam has no weight decay")] = "nesterov"
    norms: Annotated[
        Literal["batch", "source"], Means("statistics of batch norms in steps: of the batch, or the frozen ones")
    ] = "batch"
    decay_steps: Annotated[
        int | None, Ge(1), Means("steps on the stream over which the rate falls as in a phase; none: it stays")
    ] = None

    tasks = ("classification",)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        alone = "one frame has no diversity of predictions" if len(batch.images) == 1 else ""
        return frames_reject("SHOT", batch) or alone

    def carries(self, phase: Phase) -> bool:
        """Begin every phase without momentum."""
        return phase.on_stream

    def rule(self) -> Nesterov | Adam:
        if self.optimiser == "adam":
            return Adam(self.learning_rate)
        return Nesterov(self.learning_rate, self.momentum, self.weight_decay)

    def normalising(self, run: LearningRun) -> AbstractContextManager[NormRecord]:
        """Normalise by the batch, or leave batch norms as they are."""
        from driftlab.platform.networks.module_utils import NormRecord

        return nullcontext(NormRecord()) if self.norms == "source" else super().normalising(run)

    def start(self, run: LearningRun) -> str:
        """Bind all parameters but those of the head g; the first call runs one frame to find it."""
        from driftlab.platform.networks.features import head_of
        from driftlab.platform.networks.vector import layout_of

        if run.state.head is None:
            run.state = replace(run.state, head=head_of(run.model, run.inputs(np.arange(1))))
            run.count(1)
        run.bind([name for name in layout_of(run.model).names if not name.startswith(f"{run.state.head}.")])
        return "" if run.names else "all that learns is the head, which SHOT freezes"

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        done, planned = (run.steps, self.decay_steps) if run.phase.on_stream else (run.made, run.planned)
        if not run.phase.on_stream and self.cls_par and run.made % self.relabel == 0:
            self._find_labels(run)
        if planned:
            progress = min(1.0, (done + 1) / planned)
            run.rule = replace(self.rule(), learning_rate=self.learning_rate * (1 + 10 * progress) ** -0.75)
        labels = run.notes.get("labels")
        run.learn(self.loss(run, rows, None if labels is None else labels[rows]))

    def loss(self, run: LearningRun, rows: Rows, labels: torch.Tensor | None) -> torch.Tensor:
        """Return L_ent - L_div, and the cross-entropy with pseudo-labels where there are any."""
        from torch.nn import functional as F

        outputs = run.outputs(rows)
        loss = information(outputs, self.div_weight)
        return loss if labels is None else loss + self.cls_par * F.cross_entropy(outputs, labels)

    def _find_labels(self, run: LearningRun) -> None:
        """Label all frames by their features."""
        import torch

        with run.resting():
            seen = [run.features(run.inputs(part)) for part in in_parts(len(run.batch.images), self.batch)]
        found, outputs = (torch.cat([getattr(each, what) for each in seen]) for what in ("features", "outputs"))
        run.notes["labels"] = labels = pseudo_labels(found, outputs)
        run.kept_bytes = found.nbytes + outputs.nbytes + labels.nbytes


def pseudo_labels(features: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Label every frame by the nearest centroid by cosine, in two rounds.

    Classes without frames have no centroid: the soft centroid of a class that is never predicted lies in the middle of
    all features and would attract frames.
    """
    import torch
    from torch.nn import functional as F

    given = F.normalize(torch.cat([features, torch.ones_like(features[:, :1])], dim=1))
    weights = outputs.softmax(dim=1)
    for _ in range(2):
        members = F.one_hot(weights.argmax(dim=1), outputs.shape[1]).sum(dim=0)
        centroids = weights.T @ given / (1e-8 + weights.sum(dim=0))[:, None]
        cosine = given @ F.normalize(centroids).T
        labels = cosine.masked_fill(members == 0, -math.inf).argmax(dim=1)
        weights = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return labels
