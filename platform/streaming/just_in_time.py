"""Just-In-Time (Mullapudi et al., ICCV 2019): online distillation on single frames.

Every sampled frame is one upload at high quality, and every training that changed weights is one update, as in the
comparison of the AMS paper.

Differs from the paper: the interval between samples is in seconds of the stream, not in frames of a 30 fps video, and
the table of systems sets a smaller learning rate, because the published 0.01 diverges on networks this small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored, Trained
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, newest_s, within
from driftlab.platform.streaming.wire.samples import codec_faults


@dataclass(frozen=True)
class JustInTime(Streaming):
    """Just-In-Time (ICCV 2019): upload single frames; double or halve the interval by the student's score."""

    threshold: Annotated[float, Ge(0), Means("score on the sampled frame at which training stops")] = 0.75
    min_interval_s: Annotated[float, Gt(0), Means("shortest interval between samples", "s")] = 8 / 30
    max_interval_s: Annotated[float, Gt(0), Means("longest interval between samples", "s")] = 64 / 30
    max_steps: Annotated[int, Ge(1), Means("maximum number of training steps on one frame")] = 8
    codec: Annotated[str, Means("encoding of uploaded frames: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = "jpeg:95"

    feeds_learner = True
    needs_labels = True

    def faults(self) -> list[str]:
        """List parameters that contradict each other, and an unknown codec."""
        reversed_range = (
            f"'min_interval_s' is {self.min_interval_s}, must be at most max_interval_s = {self.max_interval_s}"
        )
        return [*([reversed_range] if self.min_interval_s > self.max_interval_s else []), *codec_faults(self.codec)]

    def start(self, session: StreamFacts) -> float:
        """Start with the shortest interval; the state is the interval in seconds."""
        return self.min_interval_s

    def allows(self, state: float) -> bool:
        """Return whether an interval is within the limits."""
        return within(state, self.min_interval_s, self.max_interval_s)

    def plan_uplink(self, state: float, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Send the newest frame now and the next one after the interval, which is at least one frame long."""
        return Sampling(
            (newest_s(now_s, session),), send_s=now_s, next_s=now_s + max(state, 1 / session.fps), codec=self.codec
        )

    def plan_downlink(self, state: float, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on the newest frame only, until the student reaches the threshold or `max_steps` are done."""
        return DownlinkPlan(state, Phase(self.max_steps, stop_score=self.threshold), oldest_s=stored.newest_s)

    def learn(self, state: float, trained: Trained) -> float:
        """Double the interval if the score after training exceeds the threshold, else halve it."""
        if trained.score is not None and trained.score > self.threshold:
            return min(self.max_interval_s, 2 * state)
        return max(self.min_interval_s, state / 2)
