"""LAME (CVPR 2022): Laplacian-regularised correction of a batch's predictions; weights stay.

Differs from the paper's text, as the released code does: the energy that ends the iterations takes the Laplacian term
from the assignments before the iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import Rows, frames_reject
from driftlab.platform.adaptation.learn import HeadAdaptation
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun

STATELESS = "it changes predictions only, and keeps nothing between batches"


@dataclass(frozen=True)
class Lame(HeadAdaptation):
    """Correct the predictions of a batch by the affinity of its frames."""

    affinity: Annotated[Literal["knn", "rbf", "linear"], Means("affinity w_ij of two frames")] = "knn"
    neighbours: Annotated[int, Ge(1), Means("nearest frames that count, and that set the width of rbf")] = 5
    rounds: Annotated[int, Ge(1), Means("iterations at most")] = 100
    tolerance: Annotated[float, Gt(0), Means("relative change of the energy that ends the iterations")] = 1e-8

    tasks, only_on_stream, needs_batch = ("classification",), True, True

    def changes(self, model: nn.Module) -> list[str]:
        return []

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return frames_reject("Lame", batch)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return self.only_predict(model, state, batch, phase, STATELESS)

    def follow(self, run: LearningRun, rows: Rows) -> tuple[dict[str, Any], torch.Tensor]:
        seen = run.features(run.inputs(rows))
        return {}, self.refine(seen.features, seen.outputs)

    def refine(self, features: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Return the class probabilities, smoothed over the affinities of the frames."""
        from torch.nn import functional as F

        z = q = outputs.softmax(dim=1)  # the paper's assignments z~ and probabilities q
        w, unary, before = self._affinities(F.normalize(features, dim=1)), -(q + 1e-10).log(), float("inf")
        for number in range(self.rounds):
            laplacian = w @ z
            z = (laplacian - unary).softmax(dim=1)  # bound update: z_i proportional to q_i exp(sum_j w_ij z_j)
            energy = float((unary * z - laplacian * z + z * z.clamp_min(1e-20).log()).sum())
            if number > 1 and abs(energy - before) <= self.tolerance * abs(before):
                break
            before = energy
        return z

    def _affinities(self, features: torch.Tensor) -> torch.Tensor:
        """Return the affinity w_ij of each pair of frames, [n, n]."""
        import torch

        if self.affinity == "linear":
            return features @ features.T
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.affinity == "rbf":
            width = distances.kthvalue(min(self.neighbours, len(features)), dim=1).values.mean()
            return torch.exp(-(distances**2) / (2 * width**2 + 1e-30))
        nearest = min(self.neighbours, len(features) - 1)
        near = distances.fill_diagonal_(float("inf")).topk(nearest, dim=1, largest=False).indices
        return torch.zeros_like(distances).scatter_(1, near, 1.0)
