"""SAR: Tent on sure frames, along gradients that hold in a neighbourhood of the weights.

Differs from the paper: the last quarter of the batch norms stays as it is, where the paper names the last stage of its
networks; only batch norms count as norms; after a recovery the average starts anew and the optimiser is empty, where
the released code keeps both (`recovery: released`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation.memory import Remembering
from driftlab.platform.adaptation.scales import OfScales, Steps, samples_of, scales_and_shifts
from driftlab.platform.adaptation.stream import Rows, entropies
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Sar(OfScales, Remembering):
    """Minimise the entropy of sure samples and its sharpness; return to the source where predictions collapse."""

    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "sgd"
    threshold: Annotated[float, Gt(0), Le(1), Means("entropy of a sure sample, as a share of the largest one")] = 0.4
    radius: Annotated[float, Ge(0), Means("distance at which the gradient is taken")] = 0.05
    spared: Annotated[float, Ge(0), Lt(1), Means("share of the batch norms, from the last one, that stay")] = 0.25
    recover_below: Annotated[float, Ge(0), Means("average entropy below which the network returns to the source")] = 0.2
    recovery: Annotated[
        Literal["fresh", "released"], Means("whether a recovery clears the average and the optimiser as well")
    ] = "fresh"

    tasks = ("segmentation", "classification")

    def trains(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.module_utils import batch_norms

        norms = list(batch_norms(model))
        trained = set(norms[: len(norms) - math.floor(self.spared * len(norms))])
        return [name for name in scales_and_shifts(model) if name.rpartition(".")[0] in trained]

    def lesson(self, steps: Steps, rows: Rows) -> None:
        entropy = entropies(outputs := samples_of(steps.outputs(rows)))
        limit = self.threshold * math.log(outputs.shape[1])
        fit = entropy.detach() < limit
        if not steps.judge(fit) or not steps.backward(entropy[fit].mean(), rows, last=False):
            return
        weights, gradient = steps.flat.weights, steps.flat.gradients
        before = weights.clone()
        weights.add_(gradient * (self.radius / (gradient.norm() + 1e-12)))
        gradient.zero_()
        again = entropies(samples_of(steps.outputs(rows)))
        still = fit & (again.detach() < limit)
        learned = bool(still.any()) and steps.backward(again[still].mean(), rows)
        weights.copy_(before)
        if learned:
            steps.step()
            self._watch(steps, steps.done.losses[-1])

    def _watch(self, steps: Steps, loss: float) -> None:
        """Follow the average loss, and recover where it says that predictions collapsed."""
        import torch

        average = 0.9 * float(steps.held["average"]) + 0.1 * loss if "average" in steps.held else loss
        steps.held["average"] = torch.tensor(average, dtype=torch.float64)
        if average < self.recover_below:
            steps.restart(empty=self.recovery == "fresh")
            if self.recovery == "fresh":
                del steps.held["average"]
