"""Independent: a separate network for every width, each trained alone; the baseline of nested networks.

Several sizes are several files: all of them must be stored, and a switch drops one full network and loads another.

Differs from the paper: networks learn other data first only where the student does and `elsewhere_epochs` says so; else
they start from random weights or from the trained one. Each training keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.scaling.widths import OfWidths

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import Course, Data
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Independent(OfWidths):
    """Train a separate network for every width: no memory is shared, and a switch moves all of it."""

    start: Annotated[
        Literal["scratch", "pruned"], Means("where training begins: random weights, or the pruned network")
    ] = "scratch"
    elsewhere_epochs: Annotated[
        int, Ge(0), Means("passes over the labelled set that the student learned before its own", "epochs")
    ] = field(default=0, metadata={BEFORE: 0})
    ranking: Annotated[Ranking, Means("how filters are ranked where networks are pruned")] = "l1"
    ranked_on: Annotated[int, Ge(2), Means("frames that the ranking looks at", "frames")] = 500
    epochs: Annotated[int, Ge(0), Means("passes over the data that each network learns for", "epochs")] = 12
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    nested = False

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.training.training_loop import Course, train_best
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured, tensor_names

        shares = drop_equal_shares(context, self.keep[::-1])
        networks = [self._begin(context, share) for share in shares]
        for which, (share, network) in enumerate(zip(shares, networks, strict=True)):
            if self.elsewhere_epochs:
                before = Course(self.elsewhere_epochs, self.learning_rate, self.batch)
                learn_elsewhere(network, context.data, before, context.rng("elsewhere", which))
            course = Course(self.epochs, self.learning_rate, self.batch)
            score = train_best(network, context.data, course, context.rng("independent", which))
            logger.info("Trained a network of %.0f %% of the filters: %.3f", 100 * share, score)
        return merge_measured(context, shares, networks, own=tensor_names(context.model))

    def faults(self) -> list[str]:
        """Refuse to teach a network other pictures that was cut out of one that knows its own."""
        late = self.elsewhere_epochs and self.start != "scratch"
        return [*super().faults(), *(["'elsewhere_epochs' is for networks that start from 'scratch'"] if late else [])]

    def _begin(self, context: PruningContext, share: float) -> nn.Module:
        """Return a network of this width, untrained or pruned in one step."""
        from driftlab.platform.scaling.growing import prefix_of, prune, start_footprint, untrained_narrow

        if self.start == "scratch":
            return untrained_narrow(context, prefix_of(context, share))
        shares = dict.fromkeys(context.groups.sizes, share)
        return prune(context, start_footprint(context), shares, self.ranking, self.ranked_on).network


def learn_elsewhere(network: nn.Module, data: Data, course: Course, rng: np.random.Generator) -> None:
    """Train on what the student learned first, under a head for its classes; the network's own head stays as it is."""
    from torch import nn

    from driftlab.platform.networks.training.training_loop import train_best

    if data.elsewhere is None:
        raise RequestError(
            "'elsewhere_epochs' is above 0: name the labelled set that is learned first, student.elsewhere."
        )
    other = data.elsewhere()
    heads = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if not heads:
        raise RequestError("'elsewhere_epochs' is above 0: only networks with a linear head can learn other classes.")
    name, own = next(reversed(heads.items()))
    network.set_submodule(name, nn.Linear(own.in_features, other.classes))
    score = train_best(network, other, course, rng)
    logger.info("Learned %d classes elsewhere: %.3f", other.classes, score)
    network.set_submodule(name, own)
