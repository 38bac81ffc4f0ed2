"""US-Net: networks of every width trained jointly, as prefixes of the same weights (Yu & Huang, ICCV 2019).

Differs from the paper: it starts from a trained network instead of random weights, the widest network is the widest
requested one, and a task without classes trains on its labels at every width.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scaling.widths import OfWidths

if TYPE_CHECKING:
    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsNet(OfWidths):
    """Train all widths jointly: per step the widest, the narrowest and some between, which learn from the widest."""

    widths: Annotated[int, Ge(2), Means("networks trained per step: the widest, the narrowest, others at random")] = 4
    epochs: Annotated[int, Ge(0), Means("passes over the data", "epochs")] = 6
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.03
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32
    calibration: Annotated[int, Ge(1), Means("batches that each network's statistics are measured on")] = 5

    nested = True

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.training.training_loop import Course
        from driftlab.platform.scaling import slimming
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured

        course = Course(self.epochs, self.learning_rate, self.batch)
        whole = slimming.train_widths(context, partial(slimming.draw_widths, self.keep, self.widths), course)
        shares = drop_equal_shares(context, self.keep[::-1])
        networks = [slimming.calibrate(context, whole, share, course, self.calibration) for share in shares]
        family = merge_measured(context, shares, networks, own={name for name, _ in context.model.named_buffers()})
        scores = ", ".join(f"{score:.3f}" for score in family.val_accuracies)
        logger.info("Trained %d widths together: %s", len(family), scores)
        return family
