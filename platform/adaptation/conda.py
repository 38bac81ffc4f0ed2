"""ConDA: SHOT on the frames of a phase and on samples of past domains, mixed in pairs.

Differs from the paper: only its abstract was at hand, so weights, the mixing and the choice of samples are ours. On the
stream it is SHOT: there are no pseudo-labels that could be mixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import below, under
from driftlab.platform.adaptation.replay import Replay, replay_of, surest
from driftlab.platform.adaptation.shot import Shot, information
from driftlab.platform.adaptation.stream import Remembering
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.features import FeaturePass


@dataclass(frozen=True)
class ConDa(Shot, Remembering):
    """Learn pseudo-labels of mixed pairs, with samples of past domains among them."""

    cls_par: Annotated[float, Ge(0), Le(100), Means("weight of the pseudo-labels in the loss")] = 1.0
    mixing: Annotated[float, Ge(0), Le(100), Means("both parameters of the shares' Beta; 0: nothing is mixed")] = 1.0
    per_class: Annotated[int, Ge(0), Means("samples of past domains per class")] = 10
    least: Annotated[float, Ge(0), Le(1), Means("confidence below which no sample is kept")] = 0.6

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        kept = replay_of(below("replay", state.held))
        if phase.on_stream or not len(batch.images):
            return super().adapt(model, state, batch, phase)
        images = np.concatenate([batch.images, kept.image]) if len(kept) else batch.images
        done = super().adapt(model, state, batch.showing(images), phase)
        return done if done.skipped else self._remember(model, batch, kept, done)

    def lesson(
        self, model: nn.Module, batch: Batch, rows: stream.Rows, labels: torch.Tensor | None
    ) -> tuple[FeaturePass, torch.Tensor]:
        """Return a pass over mixed frames, and its loss."""
        if labels is None or not self.mixing:
            return super().lesson(model, batch, rows, labels)
        import torch
        from torch.nn import functional as F

        from driftlab.platform.networks.features import features

        inputs, partner = stream.device_inputs(model, batch, rows), batch.rng.permutation(len(rows))
        drawn = batch.rng.beta(self.mixing, self.mixing, len(rows))
        share = torch.tensor(drawn, dtype=inputs.dtype, device=inputs.device)
        wide = share.view(-1, 1, 1, 1)
        seen = features(model, wide * inputs + (1 - wide) * inputs[partner])
        own, other = (F.cross_entropy(seen.outputs, target, reduction="none") for target in (labels, labels[partner]))
        taught = (share * own + (1 - share) * other).mean()
        return seen, information(seen.outputs, self.div_weight) + self.cls_par * taught

    def _remember(self, model: nn.Module, batch: Batch, kept: Replay, done: Adapted) -> Adapted:
        """Keep the surest frames of the phase beside those of earlier ones."""
        import torch

        frames = len(batch.images)
        with torch.no_grad():
            shares = model(stream.device_inputs(model, batch, np.arange(frames))).softmax(dim=1).cpu().numpy()
        number = int(kept.domain.max()) + 1 if len(kept) else 0
        newest = Replay(batch.images, shares.argmax(axis=1), shares.max(axis=1), np.full(frames, number))
        samples = surest(kept.with_these(newest), self.per_class, self.least)
        held = under("replay", samples.arrays())
        assert done.work is not None
        work = replace(done.work, forward=(*done.work.forward, frames))
        return replace(done, state=replace(done.state, held=held), work=work)
