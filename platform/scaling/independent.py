"""Independent variants: a separately trained network per width.

They are the baseline of nested networks in NestDNN.

All sizes are stored separately, and a switch drops one network and loads another.

Differs from the paper: networks start from random weights or from the trained network, or are first trained on the
student's pre-training set (`pretrain_set_epochs`). Each training keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.scaling.widths import WidthScaling

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import DataSplits, TrainingSchedule
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Independent(WidthScaling):
    """Independent variants: one separately trained network per width; baseline of nested networks."""

    start: Annotated[Literal["scratch", "pruned"], Means("initial weights: random, or those of the pruned network")] = (
        "scratch"
    )
    pretrain_set_epochs: Annotated[int, Ge(0), Means("epochs on the pre-training set of the student", "epochs")] = (
        field(default=0, metadata={BEFORE: 0})
    )
    ranking: Annotated[Ranking, Means("ranking of filters, for start: pruned")] = "l1"
    ranked_on: Annotated[int, Ge(2), Means("training frames that the ranking uses", "frames")] = 500
    epochs: Annotated[int, Ge(0), Means("training epochs per network", "epochs")] = 12
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate")] = 0.05
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32

    nested = False

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, train_best
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured, tensor_names

        shares = drop_equal_shares(context, self.keep_ratios[::-1])
        networks = [self._begin(context, share) for share in shares]
        for which, (share, network) in enumerate(zip(shares, networks, strict=True)):
            if self.pretrain_set_epochs:
                before = TrainingSchedule(self.pretrain_set_epochs, self.learning_rate, self.batch)
                learn_elsewhere(network, context.data, before, context.rng("elsewhere", which))
            schedule = TrainingSchedule(self.epochs, self.learning_rate, self.batch)
            score = train_best(network, context.data, schedule, context.rng("independent", which))
            logger.info("Trained a network of %.0f %% of the filters: %.3f", 100 * share, score)
        return merge_measured(context, shares, networks, own=tensor_names(context.model))

    def faults(self) -> list[str]:
        """Return a fault for pre-training a network that starts from trained weights."""
        late = self.pretrain_set_epochs and self.start != "scratch"
        return [
            *super().faults(),
            *(["'pretrain_set_epochs' is for networks that start from 'scratch'"] if late else []),
        ]

    def _begin(self, context: PruningContext, share: float) -> nn.Module:
        """Return the initial network of a width: untrained, or pruned in one step."""
        from driftlab.platform.scaling.growing import prefix_of, prune, start_footprint, untrained_narrow

        if self.start == "scratch":
            return untrained_narrow(context, prefix_of(context, share))
        shares = dict.fromkeys(context.groups.sizes, share)
        return prune(context, start_footprint(context), shares, self.ranking, self.ranked_on).network


def learn_elsewhere(network: nn.Module, data: DataSplits, schedule: TrainingSchedule, rng: np.random.Generator) -> None:
    """Train on the student's pre-training set, with a head for its classes.

    The network's own head stays unchanged.
    """
    from torch import nn

    from driftlab.platform.networks.training.training_loop import train_best

    if data.elsewhere is None:
        raise RequestError(
            "'pretrain_set_epochs' is above 0: name the labelled set that is learned first, student.pretrain_set."
        )
    other = data.elsewhere()
    heads = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if not heads:
        raise RequestError(
            "'pretrain_set_epochs' is above 0: only networks with a linear head can learn other classes."
        )
    name, own = next(reversed(heads.items()))
    network.set_submodule(name, nn.Linear(own.in_features, other.classes))
    score = train_best(network, other, schedule, rng)
    logger.info("Learned %d classes elsewhere: %.3f", other.classes, score)
    network.set_submodule(name, own)
