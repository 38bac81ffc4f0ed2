"""Independent: a separate network for every width, each trained alone; the baseline of nested networks.

Several sizes are several files: all of them must be stored, and a switch drops one full network and loads another.

Differs from the paper: there is no pre-training on other data, networks start from random weights or from the
trained one, and each training keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.pruning.rankings import Ranking
from driftlab.platform.scaling.widths import OfWidths

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.pruning.family import Family
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Independent(OfWidths):
    """Train a separate network for every width: no memory is shared, and a switch moves all of it."""

    start: Annotated[
        Literal["scratch", "pruned"], Means("where training begins: random weights, or the pruned network")
    ] = "scratch"
    ranking: Annotated[Ranking, Means("how filters are ranked where networks are pruned")] = "l1"
    ranked_on: Annotated[int, Ge(2), Means("frames that the ranking looks at", "frames")] = 500
    epochs: Annotated[int, Ge(0), Means("passes over the data that each network learns for", "epochs")] = 12
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    nested = False

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured, tensor_names
        from driftlab.platform.training.schooling import Course, train_best

        shares = drop_equal_shares(context, self.keep[::-1])
        networks = [self._begin(context, share) for share in shares]
        for which, (share, network) in enumerate(zip(shares, networks, strict=True)):
            course = Course(self.epochs, self.learning_rate, self.batch)
            score = train_best(network, context.data, course, context.rng("independent", which))
            logger.info("Trained a network of %.0f %% of the filters: %.3f", 100 * share, score)
        return merge_measured(context, shares, networks, own=tensor_names(context.model))

    def _begin(self, context: PruningContext, share: float) -> nn.Module:
        """Return a network of this width, untrained or pruned in one step."""
        from driftlab.platform.scaling.growing import prefix_of, prune, start_footprint, untrained_narrow

        if self.start == "scratch":
            return untrained_narrow(context, prefix_of(context, share))
        shares = dict.fromkeys(context.groups.sizes, share)
        return prune(context, start_footprint(context), shares, self.ranking, self.ranked_on).network
