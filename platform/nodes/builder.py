"""A builder: makes the artefacts that a run needs, or finds them in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.records import Reply
from driftlab.platform.models.artifacts import FamilyRecipe, obtain_family
from driftlab.platform.scaling.base import Budget, Profile

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Built:
    """A family of networks is ready."""

    profile: tuple[Profile, ...]
    digest: str
    kernel_bytes: tuple[int, ...]  # of each network


class Builder:
    """Builds networks; has no state, so any process may do it."""

    def build(self, recipe: FamilyRecipe) -> Reply:
        """Return what the scaling member stores of the network that a recipe trains."""
        from driftlab.platform.models.predict import digest
        from driftlab.platform.models.zoo import build

        network, scaling = recipe.network, recipe.scaling.make()
        size = (network.height, network.width)
        arrays = obtain_family(recipe)
        family = scaling.restore(build(network.network, network.classes, seed=0).eval(), arrays, size)
        profile = scaling.profile(family, size)
        networks = (scaling.select(family, Budget(variant=which)) for which in range(len(profile)))
        return Reply(Built(profile, digest(arrays), tuple(map(_kernel_bytes, networks))), payload=arrays)


def _kernel_bytes(network: nn.Module) -> int:
    """Count what a larger network could hold for a smaller one: kernels and matrices, not one number per channel."""
    return sum(each.numel() * each.itemsize for each in network.parameters() if each.dim() > 1)
