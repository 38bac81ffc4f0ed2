"""Independent: a separate network for every width, each trained alone; the baseline of nested networks.

Several sizes are several files: all of them must be stored, and a switch drops one full network and loads another.

Differs from the paper: there is no pre-training on other data, networks start from random weights or from the
trained one, and each training keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftlab.platform.core.ranges import faults_in
from driftlab.platform.scaling.widths import KEEP, Keep, OfWidths, keep_faults

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.pruning.family import Family
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Independent(OfWidths):
    """Train a separate network for every width: no memory is shared, and a switch moves all of it."""

    keep: Keep = KEEP  # share of the filters of each network
    start: Literal["scratch", "pruned"] = "scratch"
    ranking: Literal["trr", "l1", "bn_gamma", "random"] = "l1"  # of filters, where networks are pruned
    ranked_on: int = 500  # frames
    epochs: int = 12
    learning_rate: float = 0.05
    batch: int = 32

    nested = False

    def faults(self) -> list[str]:
        """List every parameter outside its range."""
        ranges = {
            "ranked_on": (self.ranked_on >= 2, "at least 2"),
            "epochs": (self.epochs >= 0, "at least 0"),
            "learning_rate": (0 < self.learning_rate <= 10, "in (0, 10]"),
            "batch": (self.batch >= 2, "at least 2"),
        }
        return keep_faults(self.keep) + faults_in(self, ranges)

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
