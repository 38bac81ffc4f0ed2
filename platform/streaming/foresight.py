"""Foresight: bounds that train on frames before they are shown.

`span="stream"` trains once on frames of the complete stream: the best static model. `span="window"` trains before each
window on the frames of that window only: the per-window oracle. Links and servers take no time in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, choose_times


@dataclass(frozen=True)
class Foresight(Streaming):
    """Bounds: train on frames before they are shown; on the whole stream once, or on each window."""

    span: Annotated[Literal["stream", "window"], Means("training data: the whole stream once, or each window")] = (
        "window"
    )
    window_s: Annotated[float, Gt(0), Means("length of a window", "s")] = 10.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 1.0
    iterations: Annotated[int, Gt(0), Means("number of training steps")] = 60

    feeds_learner = True
    free = True

    def reads_end(self, session: StreamFacts) -> bool:
        """Return True: samples reach to the end of the session, of the stream or of its last window."""
        return True

    def start(self, session: StreamFacts) -> None:
        return None

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample the frames that follow; the next plan is due when they have been shown."""
        if self.span == "stream" and now_s > 0:
            return None
        stop_s = session.duration_s if self.span == "stream" else min(now_s + self.window_s, session.duration_s)
        times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        return Sampling(times_s, send_s=now_s, next_s=stop_s, codec="png", rate_fps=self.rate_fps)

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on this upload only: the oracle of a window uses no other window."""
        return DownlinkPlan(state, Phase(self.iterations), oldest_s=now_s, dense=True)
