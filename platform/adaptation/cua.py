"""CUA: aligns features of device frames with the source's, and replays samples of past domains.

Differs from the paper: its text was not at hand, so this is the variant with kernels of a public benchmark; features of
the source are kept in place of its frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch
from driftlab.platform.adaptation.batches import ONE_FRAME, Rows, frames_reject, source_passes
from driftlab.platform.adaptation.learn import LossDescent
from driftlab.platform.adaptation.memory import below, own_arrays, under
from driftlab.platform.adaptation.objectives import covariance_distance, mean_discrepancy
from driftlab.platform.adaptation.replay import Replay, replay_of
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.heads import linear_head

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

SOURCE_FEATURES = 512  # feature vectors of the source that a device stores; ours


@dataclass(frozen=True)
class Cua(LossDescent):
    """Align features with the source's, and replay samples of past domains."""

    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 32
    distance: Annotated[Literal["mmd", "coral"], Means("distance of features: by kernels or by covariances")] = "mmd"
    replay_per_domain: Annotated[int, Ge(1), Means("samples that each domain leaves, and the source")] = 20

    tasks, has_source_summary = ("classification",), True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Return features of the source, and a few of its frames with their labels."""
        if data.task.name != "classification":
            return EMPTY_PACK
        found = source_passes(model, data.train.images[:SOURCE_FEATURES], self.batch).features
        few = data.train.first(self.replay_per_domain)
        labels = np.asarray(few.labels, dtype=np.int64)
        return own_arrays({"features": found, "image": few.images, "label": labels})

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        if not pack:
            return {}
        zeros = np.zeros(len(pack["label"]))
        return under("replay", Replay(pack["image"], pack["label"], zeros, zeros.astype(np.int64)).arrays())

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if why := frames_reject("CUA", batch):
            return why
        if not state.pack:
            return "there is no summary of the source to align with"
        if not linear_head(model):
            return "the network has no linear head"
        return ONE_FRAME if len(batch.images) == 1 else ""

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Return the distance of features to those of the source, and the loss of past samples."""
        import torch
        from torch.nn import functional as F

        rng, source, replay = run.batch.rng, run.packed("features"), replay_of(below("replay", run.held))
        found = run.features(run.inputs(rows)).features
        drawn = rng.choice(len(source), min(len(rows), len(source)), replace=False)
        align = mean_discrepancy if self.distance == "mmd" else covariance_distance
        distance = align(source[drawn], found)
        again = rng.choice(len(replay), min(len(rows), len(replay)), replace=False)
        outputs = run.replayed(replay.image[again])
        return distance + F.cross_entropy(outputs, torch.tensor(replay.label[again], device=outputs.device))

    def end(self, run: LearningRun) -> None:
        """Keep a few frames of a phase with the network's own labels."""
        if run.phase.on_stream:
            return
        batch, kept = run.batch, replay_of(below("replay", run.held))
        rows = batch.rng.choice(len(batch.images), min(self.replay_per_domain, len(batch.images)), replace=False)
        shares = run.watch(rows).softmax(dim=1).cpu().numpy()
        domain = np.full(len(rows), int(kept.domain.max()) + 1)
        newest = Replay(batch.images[rows], shares.argmax(axis=1), shares.max(axis=1), domain)
        run.held.update(under("replay", kept.with_these(newest).arrays()))
