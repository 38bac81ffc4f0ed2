"""A builder: makes the artefacts that a run needs, or finds them in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.records import ModelCost, Reply
from driftlab.platform.models.artifacts import Recipe, obtain


@dataclass(frozen=True)
class Built:
    """A network is ready."""

    cost: ModelCost
    digest: str


class Builder:
    """Builds networks; has no state, so any process may do it."""

    def build(self, recipe: Recipe) -> Reply:
        """Return the trained weights of a recipe."""
        from driftlab.platform.models.account import account
        from driftlab.platform.models.predict import digest
        from driftlab.platform.models.zoo import build

        weights = obtain(recipe)
        cost = account(build(recipe.network, recipe.classes, seed=0), recipe.height, recipe.width)
        return Reply(Built(cost, digest(weights)), payload=weights)
