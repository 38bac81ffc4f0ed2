"""By priority: an application's share of the machine is its share of all priorities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling


@dataclass(frozen=True)
class ByPriority(Scheduling):
    """Divide the processor in proportion to priorities; the scaling member selects the networks."""

    reserve: Annotated[float, Ge(0), Lt(1), Means("share of the processor that stays free")] = 0.0

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Return one grant per demand, in the order of the demands; shares add up to at most 1."""
        whole = sum(demand.priority for demand in window.demands)
        return Allocation(
            tuple(Grant((1 - self.reserve) * demand.priority / whole) for demand in window.demands),
        )
