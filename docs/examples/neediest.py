"""Neediest: only the application of the lowest observed accuracy trains; other trainings wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Demand, Grant, SchedulerInput, Scheduling


@dataclass(frozen=True)
class Neediest(Scheduling):
    """Reserve a share for the training of one application, and divide the rest among the inferences."""

    reserved: Annotated[float, Gt(0), Lt(1), Means("share of the processor for training")] = 0.4

    uses_observed_accuracy = True

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Return one grant per demand, in the order of the demands."""
        neediest = min((one for one in window.demands if one.learning is not None), key=rank, default=None)
        rest = 1 - self.reserved if neediest else 1.0
        whole = sum(demand.fps * demand.priority for demand in window.demands)
        grants = []
        for demand in window.demands:
            inference = rest * demand.fps * demand.priority / whole
            grants.append(Grant(inference, self.reserved if demand is neediest else 0.0, config=0))
        return Allocation(tuple(grants))


def rank(demand: Demand) -> float:
    """Return the observed accuracy; 0 before the first observation, which follows labelling."""
    return 0.0 if demand.observed is None else demand.observed
