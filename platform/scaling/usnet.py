"""US-Nets (Yu & Huang, ICCV 2019): networks of all widths, trained jointly.

They are prefixes of the same weights.

Differs from the paper: training starts from a trained network instead of random weights; the widest network is the
widest requested one; a task without classes trains on its labels at every width.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scaling.widths import WidthScaling

if TYPE_CHECKING:
    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsNet(WidthScaling):
    """US-Nets (ICCV 2019): train all widths jointly with the sandwich rule and inplace distillation."""

    widths: Annotated[
        int, Ge(2), Means("networks per step: the widest, the narrowest, others random (sandwich rule)")
    ] = 4
    epochs: Annotated[int, Ge(0), Means("training epochs", "epochs")] = 6
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate")] = 0.03
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32
    calibration: Annotated[int, Ge(1), Means("batches for measuring the batch-norm statistics of each network")] = 5

    nested = True

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.training.training_loop import TrainingSchedule
        from driftlab.platform.scaling import slimming
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured

        schedule = TrainingSchedule(self.epochs, self.learning_rate, self.batch)
        whole = slimming.train_widths(context, partial(slimming.draw_widths, self.keep_ratios, self.widths), schedule)
        shares = drop_equal_shares(context, self.keep_ratios[::-1])
        networks = [slimming.calibrate(context, whole, share, schedule, self.calibration) for share in shares]
        family = merge_measured(context, shares, networks, own={name for name, _ in context.model.named_buffers()})
        scores = ", ".join(f"{score:.3f}" for score in family.val_accuracies)
        logger.info("Trained %d widths together: %s", len(family), scores)
        return family
