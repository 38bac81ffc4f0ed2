"""The student network as an application and its learner both make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adaptation
from driftlab.platform.core.records import Weights
from driftlab.platform.networks import state
from driftlab.platform.networks.zoo import build
from driftlab.platform.nodes.specs import StudentSpec
from driftlab.platform.scaling.base import Scaling

if TYPE_CHECKING:
    from torch import nn


def family_of(spec: StudentSpec, scaling: Scaling, weights: Weights) -> Any:
    """Restore what its scaling member built, on the device where it will run."""
    model = build(spec.network, spec.classes, seed=0).eval().to(spec.torch_device)
    return scaling.restore(model, weights, (spec.height, spec.width))


def continued(member: Adaptation, model: nn.Module, pack: Weights, source: nn.Module, memory: Any) -> Any:
    """Prepare an adaptation with the source network, to go on with what the model and the state before have learned."""
    learned = state.read(model)
    state.write(model, state.read(source))
    memory = member.prepare(model, pack, go_on=memory)
    state.write(model, learned)
    return memory
