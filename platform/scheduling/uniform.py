"""Uniform: every application gets the same share (the null member)."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling, Window


@dataclass(frozen=True)
class Uniform(Scheduling):
    """Divide the machine evenly among the applications."""

    def allocate(self, window: Window) -> Allocation:
        return Allocation(tuple(Grant(1.0 / len(window.demands)) for _ in window.demands))
