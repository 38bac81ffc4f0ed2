"""LAME: the predictions of a batch agree where frames look alike; nothing in the network changes.

The energy that ends the rounds takes the neighbours' part from the predictions of before the round, as the released
code does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Adapted, Batch, Phase, Predicted
from driftlab.platform.adaptation.batches import PredictOn, frames_reject, source_passes
from driftlab.platform.adaptation.learn import StreamAdaptation
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    import torch
    from torch import nn

STILL = "it changes predictions alone, and keeps nothing from one batch to the next"


@dataclass(frozen=True)
class Lame(StreamAdaptation):
    """Correct the predictions of a batch by the likeness of its frames."""

    predict_on: PredictOn = "batch"
    affinity: Annotated[Literal["knn", "rbf", "linear"], Means("how alike two frames are")] = "knn"
    neighbours: Annotated[int, Ge(1), Means("nearest frames that count, and that set the width of rbf")] = 5
    rounds: Annotated[int, Ge(1), Means("rounds at most")] = 100
    tolerance: Annotated[float, Gt(0), Means("relative change of the energy that ends the rounds")] = 1e-8

    tasks, only_on_stream = ("classification",), True

    def changes(self, model: nn.Module) -> list[str]:
        return []

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return frames_reject("Lame", batch)

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict a batch together; a frame that is answered at once has no neighbours."""
        if self.predict_on == "frame" or frames_reject("Lame", batch):
            return super().predict(model, state, batch)
        frames = len(batch.images)
        seen = source_passes(model, batch.images, frames)
        outputs = self.refine(seen.features, seen.outputs)
        return Predicted(batch.task.predictions(outputs, *batch.images.shape[1:3]), state, Passes((frames,)))

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return self.only_predict(model, state, batch, phase, STILL)

    def refine(self, features: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Return the shares of the classes after neighbours have agreed."""
        from torch.nn import functional as F

        shares = outputs.softmax(dim=1)
        unary = -(shares + 1e-10).log()
        alike = self._alike(F.normalize(features, dim=1))
        found, before = shares, float("inf")
        for number in range(self.rounds):
            pull = alike @ found
            found = (pull - unary).softmax(dim=1)
            energy = float((unary * found - pull * found + found * found.clamp_min(1e-20).log()).sum())
            if number > 1 and abs(energy - before) <= self.tolerance * abs(before):
                break
            before = energy
        return found

    def _alike(self, features: torch.Tensor) -> torch.Tensor:
        """Return how alike each pair of frames is, [n, n]."""
        import torch

        count = len(features)
        if self.affinity == "linear":
            return features @ features.T
        away = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = min(self.neighbours, count - 1)
        if self.affinity == "rbf":
            width = away.kthvalue(min(self.neighbours, count), dim=1).values.mean()
            return torch.exp(-(away**2) / (2 * width**2 + 1e-30))
        near = away.fill_diagonal_(float("inf")).topk(nearest, dim=1, largest=False).indices
        return torch.zeros_like(away).scatter_(1, near, 1.0)
