"""US-Net: networks of every width trained jointly, all of them beginnings of the same weights (Yu & Huang, ICCV 2019).

Differs from the paper: it begins with a trained network and not with random weights, the widest network is the widest
one asked for, and a task without classes learns from its labels at every width.
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
    """Train all widths together: every step the widest, the narrowest and some between, who learn from the widest."""

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
        from driftlab.platform.pruning.family import gather
        from driftlab.platform.pruning.surgery import groups
        from driftlab.platform.scaling import slimming
        from driftlab.platform.scaling.growing import Ground, distinct, judged, widths_of
        from driftlab.platform.training.schooling import Course, alone

        assert data is not None
        with alone(data.seed):
            ground = Ground(model, groups(model, data.example(model)), data)
            course = Course(self.epochs, self.learning_rate, self.batch)
            whole = slimming.trained(ground, self.keep, self.widths, course)
            shares = distinct(ground, self.keep[::-1])
            networks = [slimming.calibrated(ground, whole, share, course, self.calibration) for share in shares]
            own = {name for name, _ in model.named_buffers()}
            family = judged(
                gather(model, ground.groups, widths_of(ground, shares), networks, own=own), ground, networks
            )
            logger.info("Trained %d widths together: %s", len(family), ", ".join(f"{a:.3f}" for a in family.accuracies))
            return family
