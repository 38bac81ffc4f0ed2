"""Every minute: specialise again on the frames of the last minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, choose_times


@dataclass(frozen=True)
class EveryMinute(Streaming):
    """Send samples every `period_s` seconds and train on those of the last `memory_s` seconds."""

    period_s: Annotated[float, Gt(0), Means("time between two uploads", "s")] = 60.0
    memory_s: Annotated[float, Gt(0), Means("age up to which samples are trained on", "s")] = 120.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 1.0
    iterations: Annotated[int, Ge(1), Means("training steps of a phase")] = 60

    feeds_learner = True

    def faults(self) -> list[str]:
        """Name conflicts between parameters; the range of each one is checked already."""
        short = self.memory_s < self.period_s
        return [f"'memory_s' is {self.memory_s}, must be at least period_s = {self.period_s}"] if short else []

    def start(self, session: StreamFacts) -> None:
        """Return the state before the first frame; this method needs none."""

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample from now on for one period, then send; the next call is at the time of sending."""
        stop_s = now_s + self.period_s
        times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        return Sampling(times_s, send_s=stop_s)

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train one phase on the newest samples, and send back the changed weights."""
        return DownlinkPlan(state, Phase(self.iterations), oldest_s=now_s - self.memory_s)
