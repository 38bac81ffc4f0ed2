"""US-Net: networks of every width trained jointly, as prefixes of the same weights (Yu & Huang, ICCV 2019).

Differs from the paper: it starts from a trained network instead of random weights, the widest network is the widest
requested one, and a task without classes trains on its labels at every width.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scaling.widths import KEEP, Keep, OfWidths, keep_faults

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.pruning.family import Family
    from driftlab.platform.training.schooling import Data

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UsNet(OfWidths):
    """Train all widths jointly: per step the widest, the narrowest and some between, which learn from the widest."""

    keep: Annotated[Keep, Gt(0), Le(1), Means("share of the filters that each network keeps, falling")] = KEEP
    widths: Annotated[int, Ge(2), Means("networks trained per step: the widest, the narrowest, others at random")] = 4
    epochs: Annotated[int, Ge(0), Means("passes over the data", "epochs")] = 6
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.03
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32
    calibration: Annotated[int, Ge(1), Means("batches that each network's statistics are measured on")] = 5

    nested = True

    def faults(self) -> list[str]:
        """Name a list of shares that does not fall."""
        return keep_faults(self.keep)

    def build(self, model: nn.Module, data: Data | None) -> Family:
        from driftlab.platform.pruning.family import merge_networks
        from driftlab.platform.pruning.surgery import groups
        from driftlab.platform.scaling import slimming
        from driftlab.platform.scaling.growing import PruningContext, drop_equal_shares, measure_accuracies, widths_of
        from driftlab.platform.training.schooling import Course, deterministic

        assert data is not None
        with deterministic(data.seed):
            context = PruningContext(model, groups(model, data.example(model)), data)
            course = Course(self.epochs, self.learning_rate, self.batch)
            whole = slimming.train_widths(context, self.keep, self.widths, course)
            shares = drop_equal_shares(context, self.keep[::-1])
            networks = [slimming.calibrate(context, whole, share, course, self.calibration) for share in shares]
            own = {name for name, _ in model.named_buffers()}
            family = measure_accuracies(
                merge_networks(model, context.groups, widths_of(context, shares), networks, own=own), context, networks
            )
            logger.info(
                "Trained %d widths together: %s", len(family), ", ".join(f"{a:.3f}" for a in family.val_accuracies)
            )
            return family
