"""CUA: features of the device's frames are aligned with those of the source, while past samples keep their labels.

Differs from the paper: its text was not at hand, so this is the variant with kernels of a public benchmark; features of
the source are kept in place of its frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, below, own_arrays, under
from driftlab.platform.adaptation.objectives import covariance_distance, mean_discrepancy
from driftlab.platform.adaptation.of_bank import whole_frames
from driftlab.platform.adaptation.replay import Replay, replay_of
from driftlab.platform.adaptation.walks import LossWalk, Walking
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.heads import linear_head, names_below_head

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.descent import Rule
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.networks.vector import Flat


@dataclass(frozen=True)
class Cua(Walking):
    """Align features with the source's, and replay samples of all domains so far."""

    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 32
    distance: Annotated[Literal["mmd", "coral"], Means("what brings features together: kernels or covariances")] = "mmd"
    alpha: Annotated[float, Ge(0), Means("weight of the replayed samples in the loss")] = 1.0
    per_domain: Annotated[int, Ge(1), Means("samples that each domain leaves, and the source")] = 20
    source_features: Annotated[int, Ge(2), Means("features of the source that are kept")] = 512

    tasks, packs = ("classification",), True

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Return features of the source, and a few of its frames with their labels."""
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import evaluating

        if data.task.name != "classification":
            return EMPTY_PACK
        given = Batch(data.train.images[: self.source_features], None, np.random.default_rng(0), data.task)
        parts = np.array_split(np.arange(len(given.images)), math.ceil(len(given.images) / self.batch))
        with evaluating(model), torch.no_grad():
            found = torch.cat([features(model, stream.device_inputs(model, given, rows)).features for rows in parts])
        few = data.train.first(self.per_domain)
        labels = np.asarray(few.labels, dtype=np.int64)
        return own_arrays({"features": found, "image": few.images, "label": labels})

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        if not pack:
            return {}
        zeros = np.zeros(len(pack["label"]))
        return under("replay", Replay(pack["image"], pack["label"], zeros, zeros.astype(np.int64)).arrays())

    def unfit(self, model: nn.Module, batch: Batch, state: MethodMemory) -> str:
        if not len(batch.images):
            return stream.NO_FRAMES
        if why := whole_frames("CUA", batch):
            return why
        if not state.pack:
            return "there is no summary of the source to align with"
        if not linear_head(model):
            return "the network has no linear head"
        return "one frame has no distribution" if len(batch.images) == 1 else ""

    def learns_of(self, model: nn.Module) -> list[str]:
        return names_below_head(model)

    def begin_walk(self, flat: Flat, state: MethodMemory) -> LossWalk:
        from driftlab.platform.networks.training.descent import Momentum

        return _Aligning(self, Momentum(self.learning_rate, self.momentum), flat, state)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        done = self.walk(model, state, batch, phase)
        if done.skipped or phase.on_stream or done.work is None:
            return done
        after, frames = self._remember(model, done.state, batch)
        return replace(done, state=after, work=replace(done.work, forward=(*done.work.forward, frames)))

    def _remember(self, model: nn.Module, state: MethodMemory, batch: Batch) -> tuple[MethodMemory, int]:
        """Keep a few frames of the phase with the network's own labels; return how many."""
        import torch

        rows = batch.rng.choice(len(batch.images), min(self.per_domain, len(batch.images)), replace=False)
        with torch.no_grad():
            shares = model(stream.device_inputs(model, batch, rows)).softmax(dim=1).cpu().numpy()
        kept = replay_of(below("replay", state.held))
        number = int(kept.domain.max()) + 1
        newest = Replay(batch.images[rows], shares.argmax(axis=1), shares.max(axis=1), np.full(len(rows), number))
        return replace(state, held=under("replay", kept.with_these(newest).arrays())), len(rows)


class _Aligning(LossWalk):
    """Steps along the distance of features and the loss of past samples."""

    def __init__(self, member: Cua, rule: Rule, flat: Flat, state: MethodMemory) -> None:
        import torch

        super().__init__(rule, flat, state)
        self._member = member
        self._features = torch.tensor(state.pack["features"], device=flat.weights.device)
        self._replay = replay_of(below("replay", state.held))

    def loss(self, model: nn.Module, batch: Batch, rows: stream.Rows, done: stream.WorkLog) -> torch.Tensor:
        import torch
        from torch.nn import functional as F

        from driftlab.platform.networks.features import features

        found = features(model, stream.device_inputs(model, batch, rows)).features
        drawn = batch.rng.choice(len(self._features), min(len(rows), len(self._features)), replace=False)
        align = mean_discrepancy if self._member.distance == "mmd" else covariance_distance
        total = align(self._features[drawn], found)
        if not self._member.alpha:
            return total
        again = batch.rng.choice(len(self._replay), min(len(rows), len(self._replay)), replace=False)
        past = batch.showing(self._replay.image)
        outputs = model(stream.device_inputs(model, past, again))
        done.forward.append(len(again))
        done.backward.append(len(again))
        labels = torch.tensor(self._replay.label[again], device=outputs.device)
        return total + self._member.alpha * F.cross_entropy(outputs, labels)
