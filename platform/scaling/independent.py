"""Independent: a network of its own for every width, trained alone; what nested networks are compared with.

Several sizes are several files: all of them must be kept, and a switch drops one whole network and loads another.

Differs from the paper: nothing was learned elsewhere before, networks start from random weights or from the trained
one, and each training keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scaling.widths import KEEP, Keep, OfWidths, keep_faults

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.pruning.family import Family
    from driftlab.platform.scaling.growing import Ground
    from driftlab.platform.training.schooling import Data

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Independent(OfWidths):
    """Train a network of its own for every width: no memory is shared, and a switch moves all of it."""

    keep: Annotated[Keep, Gt(0), Le(1), Means("share of the filters that each network keeps, falling")] = KEEP
    start: Annotated[
        Literal["scratch", "pruned"], Means("where training begins: random weights, or the pruned network")
    ] = "scratch"
    ranking: Annotated[
        Literal["trr", "l1", "bn_gamma", "random"], Means("how filters are ranked where networks are pruned")
    ] = "l1"
    ranked_on: Annotated[int, Ge(2), Means("frames that the ranking looks at", "frames")] = 500
    epochs: Annotated[int, Ge(0), Means("passes over the data that each network learns for", "epochs")] = 12
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    nested = False

    def faults(self) -> list[str]:
        """Name a list of shares that does not fall."""
        return keep_faults(self.keep)

    def build(self, model: nn.Module, data: Data | None) -> Family:
        from driftlab.platform.pruning.family import gather
        from driftlab.platform.pruning.surgery import groups
        from driftlab.platform.scaling.growing import Ground, distinct, judged, tensor_names, widths_of
        from driftlab.platform.training.schooling import Course, alone, teach

        assert data is not None
        with alone(data.seed):
            ground = Ground(model, groups(model, data.example(model)), data)
            shares = distinct(ground, self.keep[::-1])
            networks = [self._begin(ground, share) for share in shares]
            for which, (share, network) in enumerate(zip(shares, networks, strict=True)):
                course = Course(self.epochs, self.learning_rate, self.batch)
                score = teach(network, data, course, ground.rng("independent", which))
                logger.info("Trained a network of %.0f %% of the filters: %.3f", 100 * share, score)
            family = gather(model, ground.groups, widths_of(ground, shares), networks, own=tensor_names(model))
            return judged(family, ground, networks)

    def _begin(self, ground: Ground, share: float) -> nn.Module:
        """Make a network of this width, as nobody has trained it or as pruning at one stroke leaves it."""
        from driftlab.platform.scaling.growing import bare, prefix_of, pruned, start

        if self.start == "scratch":
            return bare(ground, prefix_of(ground, share))
        shares = dict.fromkeys(ground.groups.sizes, share)
        return pruned(ground, start(ground), shares, self.ranking, self.ranked_on).network
