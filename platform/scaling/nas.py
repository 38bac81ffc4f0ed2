"""NAS baseline: one path, with an operator per stage as parameters.

A parameter search is then an architecture search.

`driftlab tune nas` searches them with any searcher, by default the evolutionary one. Candidates share the weights of
one supernet, as in one-shot searches: none is trained from scratch. The path is static under load.

Differs from the paper: the space has one operator per stage; candidates are scored on streams, not on held-out data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling, deep_paths

StageOperator = Literal["dwsep", "fire", "svd", "base"]


@dataclass(frozen=True)
class Nas(PathScaling):
    """NAS baseline: run a given operator per stage; `driftlab tune nas` searches them."""

    stage1: Annotated[StageOperator, Means("operator of the first stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    stage2: Annotated[StageOperator, Means("operator of the second stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    stage3: Annotated[StageOperator, Means("operator of the third stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    stage4: Annotated[StageOperator, Means("operator of the fourth stage")] = field(
        default="base", metadata={CHOOSING: True}
    )

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Return the path, for every budget; a stage without the given operator keeps its own blocks."""
        paths, options = deep_paths(variants)
        operators = (self.stage1, self.stage2, self.stage3, self.stage4)
        path = tuple(name if name in names else names[-1] for name, names in zip(operators, options, strict=False))
        return paths[path], state
