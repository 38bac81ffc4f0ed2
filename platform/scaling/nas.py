"""NAS: one path whose operators are settings, so that a search of settings is a search of architectures.

`driftlab tune nas` searches them with any searcher, by default the evolutionary one. Candidates share the weights of
one branched network, as in one-shot searches: none is trained from scratch. What was found stays, whatever the load.

Differs from the paper: the space holds an operator for each stage; candidates are scored on streams, not on held-out
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths, deep_paths

StageOperator = Literal["dwsep", "fire", "svd", "base"]


@dataclass(frozen=True)
class Nas(OfPaths):
    """Run always the path of these operators; a stage that has no such operator stays as it is."""

    first: Annotated[StageOperator, Means("operator of the first stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    second: Annotated[StageOperator, Means("operator of the second stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    third: Annotated[StageOperator, Means("operator of the third stage")] = field(
        default="base", metadata={CHOOSING: True}
    )
    fourth: Annotated[StageOperator, Means("operator of the fourth stage")] = field(
        default="base", metadata={CHOOSING: True}
    )

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose the path, whatever the budget."""
        paths, options = deep_paths(variants)
        wanted = (self.first, self.second, self.third, self.fourth)
        path = tuple(one if one in names else names[-1] for one, names in zip(wanted, options, strict=False))
        return paths[path], state
