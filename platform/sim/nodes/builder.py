"""A builder: builds the artefacts of a run, or finds them in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Reply, Weights
from driftlab.platform.networks.training.artifacts import FamilyRecipe, PackRecipe, obtain_family, obtain_pack
from driftlab.platform.scaling.base import Profile


@dataclass(frozen=True)
class Built:
    """A family of networks is ready."""

    profile: tuple[Profile, ...]
    digest: str


BUILD_CALLS = 36  # to build a family may take as long as so many other calls of a member: it trains


class Builder:
    """Builds networks; it has no state, so any process may run it."""

    def build(self, recipe: FamilyRecipe, limit_s: float = 600.0) -> Reply:
        """Build a family within a limit of time, and return its stored form."""
        return built_from(recipe, obtain_family(recipe, BUILD_CALLS * limit_s), limit_s)

    def pack(self, recipe: PackRecipe, limit_s: float = 600.0) -> Reply:
        """Return an adaptation member's summary of a family's training data, made within a limit of time."""
        from driftlab.platform.networks.digest import digest

        pack = obtain_pack(recipe, BUILD_CALLS * limit_s)
        return Reply(digest(pack), payload=pack)


def built_from(recipe: FamilyRecipe, arrays: Weights, limit_s: float = 600.0) -> Reply:
    """Describe a family by its stored form."""
    from driftlab.platform.networks.architectures import build
    from driftlab.platform.networks.predict import digest

    network, scaling = recipe.network, limited(recipe.scaling, limit_s)
    size = (network.height, network.width)
    family = scaling.restore(build(network.network, network.classes, seed=0).eval(), arrays, size)
    return Reply(Built(scaling.profile(family, size), digest(arrays)), payload=arrays)
