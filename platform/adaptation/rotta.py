"""RoTTA: a teacher that moves slowly, batch norms that follow the stream, and lessons from a balanced, timely memory.

The network that answers is the teacher; the state holds the student's batch norms.

Differs from the paper: views are not mirrored unless `views` says so; lessons that lead to numbers that are not finite
are undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation.augment import Views, augment
from driftlab.platform.adaptation.banks import TimelyBank
from driftlab.platform.adaptation.memory import below, under
from driftlab.platform.adaptation.norms import FollowingNorm, normalise_with
from driftlab.platform.adaptation.of_bank import OfBank, Visit
from driftlab.platform.adaptation.stream import NormMomentum
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class RoTta(OfBank):
    """Learn from a balanced memory, with a slow teacher and robust batch norms."""

    share: NormMomentum = 0.05
    speed: Annotated[float, Ge(0), Le(1), Means("weight of the student in the teacher, at each lesson")] = 1e-3
    views: Annotated[Views, Means("what the student's view of a frame changes")] = "all"

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        from driftlab.platform.networks.module_utils import copy_entries

        return under("student", copy_entries(model, self.changes(model)))

    def bank(self, classes: int, rng: np.random.Generator) -> TimelyBank:
        return TimelyBank(self.capacity, classes=classes)

    def look(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = model(inputs)
        return outputs

    def learn(self, visit: Visit) -> None:
        """Teach the student one view of the memory, and move the teacher towards it."""
        import torch

        from driftlab.platform.networks.module_utils import copy_entries, restore_entries

        items, model = visit.bank.by_class(), visit.model
        inputs, rule = visit.inputs(items), FollowingNorm(self.share)
        with torch.no_grad(), normalise_with(model, rule):
            target = model(inputs).softmax(dim=1)
        visit.done.forward.append(len(items))
        if rule.starved:
            visit.broken = f"batch norm {next(iter(rule.starved))} was given one value per channel"
            return
        teacher = copy_entries(model, self.changes(model))
        visit.kept_bytes = sum(value.nbytes for value in teacher.values())
        restore_entries(model, below("student", visit.held))
        self._teach(visit, augment(inputs, visit.batch.rng, self.views), target)
        student = copy_entries(model, self.changes(model))
        visit.held.update(under("student", student))
        moved = {name: (1 - self.speed) * teacher[name] + self.speed * student[name] for name in visit.learning}
        restore_entries(model, {**teacher, **moved})

    def _teach(self, visit: Visit, inputs: torch.Tensor, target: torch.Tensor) -> None:
        from driftlab.platform.networks.module_utils import train_only
        from driftlab.platform.networks.vector import bind_vector

        ages = np.array([item.age / self.capacity for item in visit.bank.by_class()])
        rule = FollowingNorm(self.share)
        with (
            train_only(visit.model, visit.learning),
            bind_vector(visit.model) as flat,
            normalise_with(visit.model, rule),
        ):
            logs = visit.model(inputs).log_softmax(dim=1)
            visit.done.forward.append(len(inputs))
            losses = -(target * logs).sum(dim=1)
            visit.descend(flat, (_timeliness(ages, like=losses) * losses).mean(), len(inputs))


def _timeliness(ages: Any, *, like: torch.Tensor) -> torch.Tensor:
    """Return the weights of frames by their age in parts of the memory's size."""
    import torch

    return torch.tensor(np.exp(-ages) / (1 + np.exp(-ages)), dtype=like.dtype, device=like.device)
