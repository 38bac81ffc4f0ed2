"""Just-In-Time: train on single frames until the student agrees with the teacher; sample more often when it did not.

After Mullapudi et al. as compared in the AMS paper: every sampled frame is one upload at high quality, and every
training that changed something is one update.

Differs from the paper: the interval between samples counts in seconds of the stream, not in frames of a 30 fps video,
and the table of systems sets a smaller step, since the published 0.01 diverges on networks this small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored, Trained
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, newest_s
from driftlab.platform.streaming.wire.samples import codec_faults


@dataclass(frozen=True)
class JustInTime(Streaming):
    """Double the interval after a frame that the student predicted well, halve it after one that needed training."""

    threshold: Annotated[float, Ge(0), Means("score on the sampled frame from which the student counts as good")] = 0.75
    shortest_s: Annotated[float, Gt(0), Means("shortest time between two samples", "s")] = 8 / 30
    longest_s: Annotated[float, Gt(0), Means("longest time between two samples", "s")] = 64 / 30
    most_steps: Annotated[int, Ge(1), Means("most training steps on one frame")] = 8
    codec: Annotated[str, Means("how frames are packed for the link: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = (
        "jpeg:95"
    )

    feeds_learner = True
    needs_labels = True

    def faults(self) -> list[str]:
        """Name what does not fit together, and a codec that is not known."""
        long = self.shortest_s > self.longest_s
        faults = [f"'shortest_s' is {self.shortest_s}, must be at most longest_s = {self.longest_s}"] if long else []
        return faults + codec_faults(self.codec)

    def start(self, session: StreamFacts) -> float:
        """Start with the shortest interval; the state is the interval."""
        return self.shortest_s

    def plan_uplink(self, state: float, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Send the newest frame, and plan again after the interval, which is at least one frame long."""
        return Sampling(
            (newest_s(now_s, session),), send_s=now_s, next_s=now_s + max(state, 1 / session.fps), codec=self.codec
        )

    def plan_downlink(self, state: float, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on the newest frame alone until the student predicts it well enough."""
        return DownlinkPlan(state, Phase(self.most_steps, stop_score=self.threshold), oldest_s=stored.newest_s)

    def learn(self, state: float, trained: Trained) -> float:
        """Double the interval if the student predicts the frame well after training, else halve it."""
        known = trained.score is not None and trained.score > self.threshold
        return min(self.longest_s, 2 * state) if known else max(self.shortest_s, state / 2)
