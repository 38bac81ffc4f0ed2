"""Every minute: specialise again on what the last minutes showed."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming
from driftlab.platform.streaming.sampling import choose_times


@dataclass(frozen=True)
class EveryMinute(Streaming):
    """Send samples every `period_s` seconds and train on those of the last `memory_s` seconds."""

    period_s: float = 60.0
    memory_s: float = 120.0
    rate_fps: float = 1.0
    iterations: int = 60

    feeds_learner = True

    def faults(self) -> list[str]:
        """Name every parameter that is out of range; all of them are shown at once."""
        return [f"'{name}' is {value}, must be above 0" for name, value in vars(self).items() if not value > 0]

    def start(self, session: StreamFacts) -> None:
        """Return the state before the first frame; this method needs none."""

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample from now on for one period, then send; asked again as soon as that has left."""
        stop_s = now_s + self.period_s
        times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        return Sampling(times_s, send_s=stop_s)

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train one phase on what is young enough, and send back the weights that changed."""
        return DownlinkPlan(state, Phase(self.iterations), oldest_s=now_s - self.memory_s)
