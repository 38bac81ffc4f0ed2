"""Local, the null member: no message is sent."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming


@dataclass(frozen=True)
class Local(Streaming):
    """Send nothing (null member)."""

    feeds_learner = False

    def start(self, session: StreamFacts) -> None:
        return None

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        return None

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        return DownlinkPlan(state, phase=None)
