"""T3A: the head's weights become the means of the surest features of each class.

Differs from the paper: the templates replace the head's weights, so that single frames and phases have them too; `keep`
of 0 keeps all features, where the released code loses one per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation.base import Answered, Batch
from driftlab.platform.adaptation.memory import MethodMemory, as_tensors, own_arrays
from driftlab.platform.adaptation.of_bank import whole_frames
from driftlab.platform.adaptation.of_head import OfHead
from driftlab.platform.adaptation.stream import NO_FRAMES, Rows, device_inputs, entropies
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.networks.heads import entries_of, linear_head

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch
    from torch import nn

    Supports = dict[str, torch.Tensor]


@dataclass(frozen=True)
class T3a(OfHead):
    """Replace the head's weights by templates of the classes."""

    keep: Annotated[int, Ge(0), Means("features that a class keeps, the surest; 0: all")] = 20

    tasks = ("classification",)

    def changes(self, model: nn.Module) -> list[str]:
        return entries_of(model, linear_head(model))

    def unfit(self, model: nn.Module, batch: Batch) -> str:
        why = whole_frames("T3a", batch) if len(batch.images) else NO_FRAMES
        return why or ("" if linear_head(model) else "the network has no linear head")

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Begin with the head's weights as features of its classes."""
        import torch

        if not (name := linear_head(model)):
            return {}
        head = model.get_submodule(name)
        with torch.no_grad():
            outputs = head(head.weight)
        supports = {"features": head.weight, "labels": outputs.argmax(dim=1), "doubts": entropies(outputs)}
        return own_arrays(supports)

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Predict with templates to which the batch belongs, as what learns from it does."""
        if self.answers == "now" or self.unfit(model, batch):
            return super().answer(model, state, batch)
        outputs = self.take(model, state, batch, np.arange(len(batch.images)), as_tensors(state.held))[1]
        answers = batch.task.answers(outputs, *batch.images.shape[1:3])
        return Answered(answers, state, Passes((len(batch.images),)))

    def install(
        self, model: nn.Module, state: MethodMemory, held: Supports, classes: int
    ) -> npt.NDArray[np.bool_] | None:
        """Replace the head by the templates, without a bias."""
        from driftlab.platform.networks.module_utils import coordinates, restore_entries
        from driftlab.platform.networks.vector import layout_of

        name, layout = linear_head(model), layout_of(model)
        restore_entries(model, _head_of(state, name, own_arrays({"weight": _templates(held, classes)})["weight"]))
        return coordinates(layout, [own for own in entries_of(model, name) if own in layout.spans])

    def take(
        self, model: nn.Module, state: MethodMemory, batch: Batch, rows: Rows, held: Supports
    ) -> tuple[Supports, torch.Tensor]:
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import evaluating

        with evaluating(model), torch.no_grad():
            found = features(model, device_inputs(model, batch, rows)).features
            name = linear_head(model)
            head = as_tensors({own: state.source[own] for own in entries_of(model, name)}, found.device)
            outputs = torch.nn.functional.linear(found, head[f"{name}.weight"], head.get(f"{name}.bias"))
            new = {"features": found, "labels": outputs.argmax(dim=1), "doubts": entropies(outputs)}
            supports = {key: torch.cat([held[key].to(found.device), new[key]]) for key in new}
            supports = self._surest(supports, outputs.shape[1])
            return supports, found @ _templates(supports, outputs.shape[1]).T

    def _surest(self, supports: Supports, classes: int) -> Supports:
        """Keep the surest features of each class for good."""
        import torch

        stay = []
        for label in range(classes):
            members = (supports["labels"] == label).nonzero()[:, 0]
            order = supports["doubts"][members].sort(stable=True).indices
            stay.append(members[order][: self.keep or None])
        return {key: value[torch.cat(stay)] for key, value in supports.items()}


def _templates(supports: Supports, classes: int) -> torch.Tensor:
    """Return one vector of length 1 per class, [classes, features]; a class without features has zeros."""
    from torch.nn import functional as F

    members = F.one_hot(supports["labels"], classes).to(supports["features"].dtype)
    return F.normalize(members.T @ F.normalize(supports["features"], dim=1), dim=1)


def _head_of(state: MethodMemory, name: str, weight: Any) -> Weights:
    """Return a head with these weights and without a bias."""
    return {own: weight if own == f"{name}.weight" else np.zeros_like(value) for own, value in state.source.items()}
