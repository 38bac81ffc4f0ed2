"""The student network, built in the same way by an application and its learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adaptation
from driftlab.platform.core.records import Weights
from driftlab.platform.networks import state
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.scaling.base import Budget, Scaling
from driftlab.platform.sim.setting import StudentSpec

if TYPE_CHECKING:
    from torch import nn


def family_of(spec: StudentSpec, scaling: Scaling, weights: Weights) -> Any:
    """Restore the family of a scaling member, on the torch device where it will run."""
    model = build(spec.network, spec.classes, seed=0).eval().to(spec.torch_device)
    return scaling.restore(model, weights, (spec.height, spec.width))


def network_for(scaling: Scaling, family: Any, budget: Budget) -> nn.Module:
    """Select a network of the family; a plug-in may have built it, so its convolutions are made safe here."""
    return make_safe(scaling.select(family, budget))


def continue_from(member: Adaptation, model: nn.Module, pack: Weights, source: nn.Module, memory: Any) -> Any:
    """Prepare an adaptation with the source network, then continue from the model's weights and the previous state."""
    learned = state.read(model)
    state.write(model, state.read(source))
    memory = member.prepare(model, pack, go_on=memory)
    state.write(model, learned)
    return memory
