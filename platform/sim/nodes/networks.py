"""Networks of a cell: built once for a run, then restored alike by an application and its learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adaptation
from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Reply, Weights
from driftlab.platform.networks import state
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.digest import digest
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.training.artifacts import FamilyRecipe, SourceSummaryRecipe, obtain_family, obtain_pack
from driftlab.platform.scaling.base import Budget, Scaling
from driftlab.platform.sim.setting import Built, StudentSpec

if TYPE_CHECKING:
    from torch import nn

BUILD_CALLS = 36  # to build a family may take as long as so many other calls of a member: it trains


class Builder:
    """Builds networks; it has no state, so any process may run it."""

    def build(self, recipe: FamilyRecipe, limit_s: float = 600.0) -> Reply:
        """Build a family within a limit of time, and return its stored form."""
        return built_from(recipe, obtain_family(recipe, BUILD_CALLS * limit_s), limit_s)

    def pack(self, recipe: SourceSummaryRecipe, limit_s: float = 600.0) -> Reply:
        """Return an adaptation member's summary of a family's training data, made within a limit of time."""
        pack = obtain_pack(recipe, BUILD_CALLS * limit_s)
        return Reply(digest(pack), payload=pack)


def built_from(recipe: FamilyRecipe, arrays: Weights, limit_s: float = 600.0) -> Reply:
    """Describe a family by its stored form."""
    network, scaling = recipe.network, limited(recipe.scaling, limit_s)
    size = (network.height, network.width)
    family = scaling.restore(build(network.network, network.classes, seed=0, size=size).eval(), arrays, size)
    return Reply(Built(scaling.profile(family, size), digest(arrays)), payload=arrays)


def family_of(spec: StudentSpec, scaling: Scaling, weights: Weights) -> Any:
    """Restore the family of a scaling member, on the torch device where it will run."""
    size = (spec.height, spec.width)
    model = build(spec.network, spec.classes, seed=0, size=size).eval().to(spec.torch_device)
    return scaling.restore(model, weights, size)


def network_for(scaling: Scaling, family: Any, budget: Budget) -> nn.Module:
    """Select a network of the family; a plug-in may have built it, so its convolutions are made safe here."""
    return make_safe(scaling.select(family, budget))


def continue_from(member: Adaptation, model: nn.Module, pack: Weights, source: nn.Module, memory: Any) -> Any:
    """Prepare an adaptation with the source network; keep the model's weights and continue its state."""
    learned = state.read(model)
    state.write(model, state.read(source))
    memory = member.prepare(model, pack, go_on=memory)
    state.write(model, learned)
    return memory
