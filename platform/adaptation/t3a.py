"""T3A: the head's weights become the means of the surest features of each class.

Differs from the paper: the templates replace the head's weights, so that single frames and phases have them too;
`features_per_class` of 0 keeps all features, where the released code loses one per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from driftlab.platform.adaptation.base import Batch, Predicted
from driftlab.platform.adaptation.batches import Rows, frames_reject
from driftlab.platform.adaptation.learn import HeadAdaptation, StreamAdaptation
from driftlab.platform.adaptation.memory import as_tensors, own_arrays
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.heads import entries_of, linear_head

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun

    Supports = dict[str, torch.Tensor]


@dataclass(frozen=True)
class T3a(HeadAdaptation):
    """Replace the head's weights by templates of the classes."""

    features_per_class: Annotated[int, Ge(0), Means("features that a class keeps, the surest; 0: all")] = 20

    tasks = ("classification",)

    def changes(self, model: nn.Module) -> list[str]:
        return entries_of(model, linear_head(model))

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return frames_reject("T3a", batch) or ("" if linear_head(model) else "the network has no linear head")

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Begin with the head's weights as features of its classes."""
        if not (name := linear_head(model)):
            return {}
        head: Any = model.get_submodule(name)
        return own_arrays(supports_of(head.weight, head(head.weight).detach()))

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict by templates to which the batch belongs; single frames by those that the head has."""
        base = HeadAdaptation if self.predict_on == "batch" else StreamAdaptation
        return base.predict(self, model, state, batch)

    def follow(self, run: LearningRun, rows: Rows) -> tuple[Supports, torch.Tensor]:
        import torch

        z, name = run.features(run.inputs(rows)).features, linear_head(run.model)
        source = as_tensors(run.state.source, z.device)
        outputs = torch.nn.functional.linear(z, source[f"{name}.weight"], source.get(f"{name}.bias"))
        new, held = supports_of(z, outputs), {key: torch.as_tensor(value) for key, value in run.held.items()}
        supports = {key: torch.cat([held[key].to(z.device), new[key]]) for key in new}
        supports = surest_of(supports, outputs.shape[1], self.features_per_class)
        run.notes["templates"] = templates = templates_of(supports, outputs.shape[1])
        return supports, z @ templates.T

    def end(self, run: LearningRun) -> None:
        """Replace the head by the templates, without a bias."""
        head, weight = linear_head(run.model), run.notes["templates"]
        run.load({own: weight if own == f"{head}.weight" else weight.new_zeros(()) for own in run.state.source})
        run.moved = self.changes(run.model)


def supports_of(features: torch.Tensor, outputs: torch.Tensor) -> Supports:
    """Return features with the classes that outputs give them, and the entropy of each."""
    return {"features": features, "labels": outputs.argmax(dim=1), "doubts": entropies(outputs)}


def surest_of(supports: Supports, classes: int, keep: int) -> Supports:
    """Keep the features of lowest entropy of each class; 0: all."""
    import torch

    of_class = [(supports["labels"] == label).nonzero()[:, 0] for label in range(classes)]
    stay = [rows[supports["doubts"][rows].sort(stable=True).indices][: keep or None] for rows in of_class]
    return {key: value[torch.cat(stay)] for key, value in supports.items()}


def templates_of(supports: Supports, classes: int) -> torch.Tensor:
    """Return one vector of length 1 per class, [classes, features]; a class without features has zeros."""
    from torch.nn import functional as F

    members = F.one_hot(supports["labels"], classes).to(supports["features"].dtype)
    return F.normalize(members.T @ F.normalize(supports["features"], dim=1), dim=1)
