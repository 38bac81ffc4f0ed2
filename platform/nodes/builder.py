"""A builder: makes the artefacts that a run needs, or finds them in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Reply
from driftlab.platform.scaling.base import Profile
from driftlab.platform.training.artifacts import FamilyRecipe, PackRecipe, obtain_family, obtain_pack


@dataclass(frozen=True)
class Built:
    """A family of networks is ready."""

    profile: tuple[Profile, ...]
    digest: str


BUILD_CALLS = 36  # to build a family may take as long as so many other calls of a member: it trains


class Builder:
    """Builds networks; has no state, so any process may do it."""

    def build(self, recipe: FamilyRecipe, limit_s: float = 600.0) -> Reply:
        """Return what the scaling member stores of the network that a recipe trains."""
        from driftlab.platform.networks.predict import digest
        from driftlab.platform.networks.zoo import build

        network, scaling = recipe.network, limited(recipe.scaling, limit_s)
        size = (network.height, network.width)
        arrays = obtain_family(recipe, BUILD_CALLS * limit_s)
        family = scaling.restore(build(network.network, network.classes, seed=0).eval(), arrays, size)
        return Reply(Built(scaling.profile(family, size), digest(arrays)), payload=arrays)

    def pack(self, recipe: PackRecipe) -> Reply:
        """Return what an adaptation member finds out about the data that a family was built on."""
        from driftlab.platform.networks.digest import digest

        pack = obtain_pack(recipe)
        return Reply(digest(pack), payload=pack)
