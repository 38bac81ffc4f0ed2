"""RoTTA (CVPR 2023): slow mean teacher, robust batch norms, category-balanced timely memory.

The network of the application is the teacher; the state holds the student's batch norms.

Differs from the paper: views are not mirrored unless `views` says so; steps that lead to numbers that are not finite
are undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.augment import Views, augment
from driftlab.platform.adaptation.banks import CategoryBalancedBank, Frame, MemoryBankAdaptation
from driftlab.platform.adaptation.batches import NormMomentum, Rows
from driftlab.platform.adaptation.memory import as_tensors, below, under
from driftlab.platform.adaptation.norms import FollowingNorm, normalise_with
from driftlab.platform.adaptation.objectives import cross_entropy
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class RoTta(MemoryBankAdaptation):
    """Learn from a balanced memory, with a slow teacher and robust batch norms."""

    bn_momentum: NormMomentum = 0.05
    ema_rate: Annotated[float, Ge(0), Le(1), Means("weight of the student in the teacher, at each step")] = 1e-3
    views: Annotated[Views, Means("augmentations of the student's view")] = "all"

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        from driftlab.platform.networks.module_utils import copy_entries

        return under("student", copy_entries(model, self.changes(model)))

    def bank(self, classes: int, rng: np.random.Generator) -> CategoryBalancedBank:
        return CategoryBalancedBank(self.capacity, classes=classes)

    def predict_rows(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        return run.outputs(rows)

    def learn_from(self, run: LearningRun, images: Frame, ages: npt.NDArray[np.int64]) -> None:
        """Teach the student one view of the memory, and move the teacher towards it."""
        import torch

        model, inputs, rule = run.model, run.inputs_of(images), FollowingNorm(self.bn_momentum)
        with torch.no_grad(), normalise_with(model, rule):
            target = run.outputs_of(inputs).softmax(dim=1)
        if rule.starved:
            run.stop(f"batch norm {next(iter(rule.starved))} was given one value per channel")
            return
        if "student" not in run.notes:
            entries = model.state_dict()
            run.notes["student"] = as_tensors(below("student", run.held), run.device)
            run.notes["network"] = {name: entries[name] for name in run.notes["student"]}  # shares its storage
        network, student = run.notes["network"], run.notes["student"]
        teacher = {name: value.clone() for name, value in network.items()}
        run.kept_bytes = sum(value.nbytes for value in teacher.values())
        _copy(student, network)
        weights = timeliness(ages / self.capacity, like=target)  # E of the paper
        with normalise_with(model, FollowingNorm(self.bn_momentum)):
            outputs = run.outputs_of(augment(inputs, run.batch.rng, self.views))
            self.step(run, (weights * cross_entropy(outputs, target)).mean())
        _copy(network, student)
        for name in run.names:
            teacher[name].mul_(1 - self.ema_rate).add_(self.ema_rate * student[name])
        _copy(teacher, network)

    def next_state(self, run: LearningRun, *, carries: bool) -> Any:
        run.held.update(under("student", run.notes.get("student", {})))
        return super().next_state(run, carries=carries)


def _copy(values: dict[str, torch.Tensor], into: dict[str, torch.Tensor]) -> None:
    import torch

    torch._foreach_copy_(list(into.values()), list(values.values()))


def timeliness(ages: npt.NDArray[np.float64], *, like: torch.Tensor) -> torch.Tensor:
    """Return the weights of frames by their age in parts of the memory's size."""
    import torch

    found = np.exp(-ages)
    return torch.tensor(found / (1 + found), dtype=like.dtype, device=like.device)
