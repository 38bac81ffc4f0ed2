"""Foresight: the bounds that no real system can have, labels of frames before they are seen.

`span="stream"` trains once on frames of the whole stream: the best static choice. `span="window"` trains before each
window on that window alone: the per-window oracle. Both over links and servers that take no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming
from driftlab.platform.streaming.sampling import spread


@dataclass(frozen=True)
class Foresight(Streaming):
    """Train on what is to come, before it comes."""

    span: Annotated[Literal["stream", "window"], Means("what is trained on: the whole stream once, or each window")] = (
        "window"
    )
    window_s: Annotated[float, Gt(0), Means("length of a window", "s")] = 10.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 1.0
    iterations: Annotated[int, Gt(0), Means("training steps")] = 60

    feeds_learner = True
    free = True

    def reads_end(self, session: StreamFacts) -> bool:
        """Learn from frames ahead, up to the end of the session: of the stream, or of its last window."""
        return True

    def start(self, session: StreamFacts) -> None:
        return None

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Look at frames from now on; the next plan is asked for when this one's frames have been shown."""
        if self.span == "stream" and now_s > 0:
            return None
        stop_s = session.duration_s if self.span == "stream" else min(now_s + self.window_s, session.duration_s)
        times_s = spread(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        return Sampling(times_s, send_s=now_s, next_s=stop_s, codec="png", rate_fps=self.rate_fps)

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on this upload alone: an oracle of a window knows that window only."""
        return DownlinkPlan(state, Phase(self.iterations), oldest_s=now_s, dense=True)
