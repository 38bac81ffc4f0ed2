"""T3A (NeurIPS 2021): replaces the linear head by class templates from confident features.

Differs from the paper: the templates replace the head's weights, so that single frames and phases use them too;
`features_per_class` of 0 keeps all features; the released code then loses one per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from driftlab.platform.adaptation.base import UNFIT, Batch
from driftlab.platform.adaptation.batches import Rows, frames_reject
from driftlab.platform.adaptation.learn import HeadAdaptation, StatefulAdaptation
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
class T3a(HeadAdaptation, StatefulAdaptation):
    """Replace the head's weights by templates of the classes."""

    features_per_class: Annotated[int, Ge(0), Means("features of lowest entropy that a class keeps; 0: all")] = 20

    tasks, needs, needs_batch = ("classification",), "a linear head", True

    def changes(self, model: nn.Module) -> list[str]:
        return entries_of(model, linear_head(model))

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return frames_reject("T3a", batch) or ("" if linear_head(model) else UNFIT[self.needs])

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Begin with the head's weights as features of its classes."""
        if not (name := linear_head(model)):
            return {}
        head: Any = model.get_submodule(name)
        return own_arrays(supports_of(head.weight, head(head.weight).detach()))

    def follow(self, run: LearningRun, rows: Rows) -> tuple[Supports, torch.Tensor]:
        import torch

        if "head" not in run.notes:
            run.notes.update(head=linear_head(run.model), source=as_tensors(run.state.source, run.device))
        z, name, source = run.features(run.inputs(rows)).features, run.notes["head"], run.notes["source"]
        outputs = torch.nn.functional.linear(z, source[f"{name}.weight"], source.get(f"{name}.bias"))
        new, held = supports_of(z, outputs), {key: torch.as_tensor(value) for key, value in run.held.items()}
        supports = {key: torch.cat([held[key].to(z.device), new[key]]) for key in new}
        supports = most_confident(supports, self.features_per_class)
        run.notes["templates"] = templates = templates_of(supports, outputs.shape[1])
        return supports, z @ templates.T

    def end(self, run: LearningRun) -> None:
        """Replace the head by the templates, without a bias."""
        head, weight = run.notes["head"], run.notes["templates"]
        run.load({own: weight if own == f"{head}.weight" else weight.new_zeros(()) for own in run.state.source})
        run.moved = self.changes(run.model)


def supports_of(features: torch.Tensor, outputs: torch.Tensor) -> Supports:
    """Return features z with their pseudo-labels, and the entropy of each prediction."""
    return {"features": features, "labels": outputs.argmax(dim=1), "doubts": entropies(outputs)}


def most_confident(supports: Supports, keep: int) -> Supports:
    """Keep the `keep` features of lowest entropy of each class, the paper's support sets; 0: all."""
    import torch

    order = supports["doubts"].sort(stable=True).indices
    labels, by_label = supports["labels"][order].sort(stable=True)
    order = order[by_label]
    if keep:
        first = torch.searchsorted(labels, labels)  # place of the first one of the same class
        order = order[torch.arange(len(order), device=order.device) - first < keep]
    return {key: value[order] for key, value in supports.items()}


def templates_of(supports: Supports, classes: int) -> torch.Tensor:
    """Return the templates c^k, [classes, d], of length 1; a class without features has zeros."""
    from torch.nn import functional as F

    members = F.one_hot(supports["labels"], classes).to(supports["features"].dtype)
    return F.normalize(members.T @ F.normalize(supports["features"], dim=1), dim=1)
