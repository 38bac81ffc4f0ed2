"""EATA (ICML 2022): Tent on confident, new samples, with Fisher regularisation towards the source.

Without a summary of the source there is no regularisation, which is the method ETA.

Differs from the paper: in segmentation a sample is a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.learn import NormAffine, StatefulAdaptation
from driftlab.platform.adaptation.objectives import (
    entropies,
    entropy_limit,
    fisher_information,
    samples_of,
    source_distance,
)
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.adaptation.batches import Rows
    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

FISHER_FRAMES = 2000  # frames of the source for the Fisher information; the paper's number


@dataclass(frozen=True)
class Eata(NormAffine, StatefulAdaptation):
    """Minimise the entropy of confident and new samples, with important weights near the source."""

    entropy_margin: Annotated[
        float, Gt(0), Le(1), Means("entropy of a confident sample, as a share of the largest")
    ] = 0.4
    redundancy_margin: Annotated[
        float, Gt(0), Le(1), Means("cosine to the mean prediction from which a sample is redundant")
    ] = 0.4
    fisher_weight: Annotated[float, Ge(0), Means("weight of the regularisation towards the source")] = 1.0
    fisher_batch: Annotated[int, Ge(2), Means("frames of one of its gradients", "frames")] = 64

    has_source_summary = True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        return fisher_information(model, data, FISHER_FRAMES, self.fisher_batch)

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        import torch

        outputs = samples_of(run.outputs(rows))
        entropy, shares = entropies(outputs), outputs.detach().softmax(dim=1)
        e_0 = entropy_limit(outputs, self.entropy_margin)
        fit, mean = entropy.detach() < e_0, run.array("mean")  # S_ent: confident samples
        if mean is not None:  # S_div: samples unlike m, the moving average of predictions
            fit &= torch.cosine_similarity(shares, mean[None], dim=1).abs() < self.redundancy_margin
        if run.judge(fit):
            newest, chosen = shares[fit].mean(dim=0), entropy[fit]
            run.held["mean"] = newest if mean is None else 0.9 * mean + 0.1 * newest
            loss = ((e_0 - chosen.detach()).exp() * chosen).mean()  # S(x) E(x)
            # + beta R, the distance to the source weighted by Fisher information
            run.learn(loss + self.fisher_weight * source_distance(run))
