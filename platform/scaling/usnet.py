"""US-Net: networks of every width trained jointly, as prefixes of the same weights (Yu & Huang, ICCV 2019).

Differs from the paper: it starts from a trained network instead of random weights, the widest network is the widest
requested one, and a task without classes trains on its labels at every width.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.ranges import faults_in
from driftlab.platform.scaling.widths import KEEP, Keep, OfWidths, keep_faults

if TYPE_CHECKING:
    from driftlab.platform.pruning.family import Family
    from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsNet(OfWidths):
    """Train all widths jointly: per step the widest, the narrowest and some between, which learn from the widest."""

    keep: Keep = KEEP  # share of the filters of each network
    widths: int = 4  # trained per step: the widest, the narrowest, and so many less two at random
    epochs: int = 6
    learning_rate: float = 0.03
    batch: int = 32
    calibration: int = 5  # batches for each network's statistics

    nested = True

    def faults(self) -> list[str]:
        """List every parameter outside its range."""
        ranges = {
            "widths": (self.widths >= 2, "at least 2"),
            "epochs": (self.epochs >= 0, "at least 0"),
            "learning_rate": (0 < self.learning_rate <= 10, "in (0, 10]"),
            "batch": (self.batch >= 2, "at least 2"),
            "calibration": (self.calibration >= 1, "at least 1"),
        }
        return keep_faults(self.keep) + faults_in(self, ranges)

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.scaling import slimming
        from driftlab.platform.scaling.growing import drop_equal_shares, merge_measured
        from driftlab.platform.training.schooling import Course

        course = Course(self.epochs, self.learning_rate, self.batch)
        whole = slimming.train_widths(context, self.keep, self.widths, course)
        shares = drop_equal_shares(context, self.keep[::-1])
        networks = [slimming.calibrate(context, whole, share, course, self.calibration) for share in shares]
        family = merge_measured(context, shares, networks, own={name for name, _ in context.model.named_buffers()})
        scores = ", ".join(f"{score:.3f}" for score in family.val_accuracies)
        logger.info("Trained %d widths together: %s", len(family), scores)
        return family
