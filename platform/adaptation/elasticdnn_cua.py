"""ElasticDNN with CUA: aligns features with stored source samples, and replays earlier domains.

Differs from the variant in the paper's evaluation: features of the source come from the network as it was cut for
this domain, and blocks of the kernel are averaged, so that batches may differ in size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch
from driftlab.platform.adaptation.batches import Rows
from driftlab.platform.adaptation.elasticdnn import Elastic
from driftlab.platform.adaptation.memory import ElasticState
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

KERNELS = 5
MAX_SOURCE = 512


@dataclass(frozen=True)
class ElasticCua(Elastic):
    """Train filters by the distance of features to those of the source, and by replayed samples."""

    replay_per_domain: Annotated[
        int, Ge(1), Le(MAX_SOURCE), Means("samples kept of the source, and of each domain", "frames")
    ] = 20

    tasks, has_source_summary = ("classification",), True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Keep the first samples of the source, with their classes."""
        if data.task.name != "classification":
            return EMPTY_PACK
        samples = data.train.first(self.replay_per_domain)
        return {"images": samples.images, "labels": np.asarray(samples.labels, dtype=np.uint8)}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> ElasticState:
        state = super().prepare(model, pack, go_on=go_on)
        if go_on is not None or "images" not in pack:
            return state
        images = np.array(pack["images"])
        return replace(state, images=images, labels=np.array(pack["labels"]), of_source=len(images))

    def reset(self, model: nn.Module, state: Any) -> ElasticState:
        """Return to the network as it was cut; of the replayed samples only those of the source stay."""
        kept, count = super().reset(model, state), state.of_source
        return replace(kept, images=state.images[:count], labels=state.labels[:count], of_source=count)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if batch.task.name != "classification":
            return f"CUA replays samples by their class, the task is {batch.task.name}"
        return super().reject_reason(model, batch, state)

    def begin(self, run: LearningRun) -> None:
        """Compute the features of the stored source samples by the network as it is."""
        import torch

        if run.state.of_source:
            with torch.no_grad():
                source = run.features(run.inputs_of(run.state.images[: run.state.of_source]))
            run.notes["source"] = source.features.clone()

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor | None:
        import torch
        from torch.nn import functional as F

        if "source" not in run.notes:
            return None
        distance = mmd(run.notes["source"], run.features(run.inputs(rows)).features)
        drawn = run.batch.rng.permutation(len(run.state.images))[: self.batch]
        outputs = run.replayed(run.state.images[drawn])
        labels = torch.from_numpy(run.state.labels[drawn]).long().to(outputs.device)
        return distance + F.cross_entropy(outputs, labels)

    def end(self, run: LearningRun) -> None:
        """Keep samples of this domain with the classes that the network now gives them."""
        from driftlab.platform.networks.predict import predict

        state, images = run.state, run.batch.images[: self.replay_per_domain]
        labels = predict(run.model, images, task=run.batch.task, device=run.device).astype(np.uint8)
        run.count(len(images))
        kept = [state.images, images] if len(state.images) else [images]
        run.state = replace(state, images=np.concatenate(kept), labels=np.concatenate([state.labels, labels]))


def mmd(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the squared maximum mean discrepancy by a sum of Gaussian kernels of doubling widths."""
    import torch

    both = torch.cat([source, target])
    distances = ((both[:, None] - both[None]) ** 2).sum(dim=2)
    count = len(both)
    width = distances.detach().sum() / (count**2 - count) / 2 ** (KERNELS // 2)
    kernel = torch.stack([torch.exp(-distances / (width * 2**power)) for power in range(KERNELS)]).sum(dim=0)
    first = len(source)
    within = kernel[:first, :first].mean() + kernel[first:, first:].mean()
    return within - 2 * kernel[:first, first:].mean()
