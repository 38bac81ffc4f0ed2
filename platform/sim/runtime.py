"""The common objects of a cell's processes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from driftlab.platform.adaptation.base import Adaptation
from driftlab.platform.scaling.base import Scaling
from driftlab.platform.scheduling.base import ObservedBy, Scheduling
from driftlab.platform.sim.context import WorkloadSetup
from driftlab.platform.sim.ledger import Ledger
from driftlab.platform.sim.session import Job, Session
from driftlab.platform.sim.setting import Cell
from driftlab.platform.streaming.base import Streaming
from driftlab.platform.world.clock import Clock

Process = Generator[simpy.Event, Any, None]
POLL_S = 0.01  # interval at which a wall clock checks whether a job is done


@dataclass
class CellRuntime:
    """A running cell: its request, clock, nodes, members and rows."""

    cell: Cell
    context: WorkloadSetup
    session: Session
    clock: Clock
    streaming: Streaming
    adaptation: Adaptation
    scaling: Scaling
    scheduling: Scheduling
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def learns_on_stream(self) -> bool:
        """Tell whether applications learn on their stream."""
        return not self.streaming.feeds_learner and self.adaptation.stream_batch > 0

    @property
    def observes(self) -> ObservedBy | None:
        """Return how accuracies are observed; None where the scheduler does not ask for them."""
        if not self.scheduling.asks.observed:
            return None
        if self.context.observed == "oracle":
            return "oracle"
        return "teacher" if self.streaming.feeds_learner and self.adaptation.labels == "teacher" else "confidence"

    def ready(self, job: Job) -> Process:
        """Wait until a job is done; in virtual time this returns at once, as asking for the result waits."""
        while self.context.clock == "wall" and not self.session.ready(job):
            yield self.clock.timeout(POLL_S)
