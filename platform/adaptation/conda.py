"""ConDA: SHOT on the frames of a phase and on samples of past domains, mixed in pairs.

Differs from the paper: only its abstract was at hand, so weights, the mixing and the choice of samples are ours. On the
stream it is SHOT: there are no pseudo-labels that could be mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import Rows
from driftlab.platform.adaptation.learn import StatefulAdaptation
from driftlab.platform.adaptation.memory import below, under
from driftlab.platform.adaptation.objectives import information
from driftlab.platform.adaptation.replay import Replay, most_confident, replay_of
from driftlab.platform.adaptation.shot import Shot
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class ConDa(Shot, StatefulAdaptation):
    """Learn pseudo-labels of mixed pairs, with samples of past domains among them."""

    cls_par: Annotated[float, Ge(0), Le(100), Means("weight of the pseudo-labels in the loss")] = 1.0
    mixup_alpha: Annotated[
        float, Ge(0), Le(100), Means("both parameters of the Beta distribution of mixing shares; 0: none")
    ] = 1.0
    replay_per_class: Annotated[int, Ge(0), Means("samples of past domains per class")] = 10
    min_confidence: Annotated[float, Ge(0), Le(1), Means("confidence below which no sample is kept")] = 0.6

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Learn in phases from samples of past domains as well, which follow the frames of the batch."""
        kept = replay_of(below("replay", state.held))
        if not phase.on_stream and len(batch.images):
            batch = batch.showing(np.concatenate([batch.images, kept.image]) if len(kept) else batch.images)
        return super().adapt(model, state, batch, phase)

    def loss(self, run: LearningRun, rows: Rows, labels: torch.Tensor | None) -> torch.Tensor:
        """Return SHOT's loss of frames that are mixed in pairs, whose labels are mixed by the same shares."""
        if labels is None or not self.mixup_alpha:
            return super().loss(run, rows, labels)
        import torch
        from torch.nn import functional as F

        inputs, partner = run.inputs(rows), run.batch.rng.permutation(len(rows))
        drawn = run.batch.rng.beta(self.mixup_alpha, self.mixup_alpha, len(rows))
        share = torch.tensor(drawn, dtype=inputs.dtype, device=inputs.device)
        wide = share.view(-1, 1, 1, 1)
        outputs = run.outputs_of(wide * inputs + (1 - wide) * inputs[partner])
        own, other = (F.cross_entropy(outputs, target, reduction="none") for target in (labels, labels[partner]))
        return information(outputs, self.div_weight) + self.cls_par * (share * own + (1 - share) * other).mean()

    def end(self, run: LearningRun) -> None:
        """Store the most confident frames of a phase with those of earlier ones."""
        if run.phase.on_stream:
            return
        kept = replay_of(below("replay", run.held))
        frames = len(run.batch.images) - len(kept)
        shares = run.watch(np.arange(frames)).softmax(dim=1).cpu().numpy()
        number = int(kept.domain.max()) + 1 if len(kept) else 0
        images = run.batch.images[:frames]
        newest = Replay(images, shares.argmax(axis=1), shares.max(axis=1), np.full(frames, number))
        chosen = most_confident(kept.with_these(newest), self.replay_per_class, self.min_confidence)
        run.held = under("replay", chosen.arrays())
