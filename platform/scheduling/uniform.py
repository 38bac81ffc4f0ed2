"""Uniform, the null member: equal shares for all applications."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling


@dataclass(frozen=True)
class Uniform(Scheduling):
    """Equal compute shares (null member)."""

    def allocate(self, window: SchedulerInput) -> Allocation:
        return Allocation(tuple(Grant(1.0 / len(window.demands)) for _ in window.demands))
