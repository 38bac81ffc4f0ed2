"""A device as a scheduler sees it: who runs there, what each could run, and what was granted window by window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftlab.platform.core.records import Variant
from driftlab.platform.lab.app_run import AppRun
from driftlab.platform.lab.cells import DeviceSpec
from driftlab.platform.scheduling.base import Allocation, Demand, Scheduling, Window
from driftlab.platform.world.apps import App
from driftlab.platform.world.variants import paged_bytes


@dataclass(frozen=True)
class AppAllocation:
    """What one application got for one window."""

    edge: AppRun
    demand: Demand
    share: float  # of the machine's compute; 0: it waits
    variant: int | None  # None: it waits, or scaling chooses
    moved_bytes: tuple[int, int]  # into and out of memory, to run it after the last one
    note: str  # why it waits, which goal cannot be met
    host_seconds: float  # of this machine's processor, to decide on the window

    @property
    def network(self) -> Variant | None:
        """What it runs, where that is settled."""
        known = self.demand.variants
        return known[0] if self.variant is None and self.share and len(known) == 1 else self._granted

    @property
    def _granted(self) -> Variant | None:
        return None if self.variant is None else self.demand.variants[self.variant]


@dataclass
class DeviceRun:
    """One device of the cell, its applications, and what is in its memory."""

    spec: DeviceSpec
    edges: Mapping[str, AppRun]  # by application
    variants: Mapping[str, Sequence[Variant]]  # what each application could run here, from the smallest on
    nested: bool  # whether a larger network holds the smaller ones
    held: dict[str, int | None] = field(default_factory=dict)  # which network of an application is in memory
    state: Any = None  # what the scheduler handed on
    granted_s: float = 0.0  # when it was asked last

    def grant(self, scheduling: Scheduling, start_s: float, window_s: float) -> list[AppAllocation]:
        """Share the machine among those who run at the start of a window."""
        present = self.spec.present(start_s)
        stopped = self.spec.stopped(self.granted_s, start_s)  # also who is back by now
        self.held = {app.name: None if app.name in stopped else self.held.get(app.name) for app in present}
        self.granted_s = start_s
        demands = tuple(map(self._demand, present))
        window = Window(start_s, window_s, self.spec.hardware.memory_bytes, demands, state=self.state)
        started_s = time.thread_time()  # of this thread alone: other cells work beside it
        allocation = scheduling.allocate(window)
        took_s = time.thread_time() - started_s
        self.state = allocation.state
        return list(self._grants(window.demands, allocation, took_s))

    def _demand(self, app: App) -> Demand:
        return Demand(
            app.name,
            app.fps,
            tuple(self.variants[app.name]),
            self.held[app.name],
            app.accuracy_goal,
            app.latency_goal_s,
            app.priority,
            self.nested,
        )

    def _grants(self, demands: Sequence[Demand], allocation: Allocation, took_s: float) -> Iterator[AppAllocation]:
        chosen = allocation.variants or (None,) * len(demands)
        notes = allocation.notes or ("",) * len(demands)
        for demand, share, variant, note in zip(demands, allocation.shares, chosen, notes, strict=True):
            before = self.held[demand.app]
            after = variant if allocation.variants else before  # who has to wait makes room
            moved = paged_bytes(demand.variants, before, after, nested=self.nested)
            self.held[demand.app] = after
            yield AppAllocation(self.edges[demand.app], demand, share, variant, moved, note, took_s)
