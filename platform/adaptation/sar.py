"""SAR (ICLR 2023): sharpness-aware Tent on confident samples, with recovery from collapse.

Differs from the paper: the last quarter of the norms stays as it is, where the paper names the last stage of its
networks; a batch without a confident sample makes no step, where momentum would move on; after a recovery the average
restarts and the optimiser is empty, where the released code keeps both (`recovery: released`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation.batches import StepSize, scales_and_shifts
from driftlab.platform.adaptation.learn import NormAffine, StatefulAdaptation
from driftlab.platform.adaptation.objectives import entropies, entropy_limit, samples_of
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.adaptation.batches import Rows
    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class Sar(NormAffine, StatefulAdaptation):
    """Minimise the entropy of confident samples and its sharpness; reset where predictions collapse."""

    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "sgd"
    learning_rate: StepSize = 2.5e-4
    entropy_margin: Annotated[
        float, Gt(0), Le(1), Means("entropy of a confident sample, as a share of the largest")
    ] = 0.4
    sam_radius: Annotated[float, Ge(0), Means("rho: distance from the weights at which the gradient is computed")] = (
        0.05
    )
    frozen_norm_share: Annotated[float, Ge(0), Lt(1), Means("share of the norms, from the last one, that stay")] = 0.25
    reset_threshold: Annotated[float, Ge(0), Means("average entropy below which the network returns to the source")] = (
        0.2
    )
    recovery: Annotated[
        Literal["fresh", "released"], Means("whether a recovery clears the average and the optimiser as well")
    ] = "fresh"

    def scope(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.module_utils import all_norms, batch_norms

        norms, whole = list(all_norms(model)), math.floor if batch_norms(model) else math.ceil
        trained = set(norms[: max(1, len(norms) - whole(self.frozen_norm_share * len(norms)))])
        return [name for name in scales_and_shifts(model) if name.rpartition(".")[0] in trained]

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        entropy = entropies(outputs := samples_of(run.outputs(rows)))
        fit = entropy.detach() < (e_0 := entropy_limit(outputs, self.entropy_margin))
        if not run.judge(fit) or not run.backward(entropy[fit].mean(), last=False):
            return
        slope = run.gradient()  # epsilon(Theta) of the paper: rho along the normalised gradient
        with run.using(run.parts(run.weights().add_(slope * (self.sam_radius / (slope.norm() + 1e-12))))):
            entropy = entropies(samples_of(run.outputs(rows)))
            still = fit & (entropy.detach() < e_0)
            learned = bool(still.any()) and run.backward(entropy[still].mean())
        if learned:
            run.step()
            self._watch(run, run.losses[-1])

    def _watch(self, run: LearningRun, loss: float) -> None:
        """Update the moving average e_m of the loss, and recover where it is below e_0's reset threshold."""
        import torch

        before = run.array("average")
        average = loss if before is None else 0.9 * float(before) + 0.1 * loss
        run.held["average"] = torch.tensor(average, dtype=torch.float64)
        if average < self.reset_threshold:
            run.restart(empty=self.recovery == "fresh")
            if self.recovery == "fresh":
                del run.held["average"]
