"""Just-In-Time: train on single frames until the student agrees with the teacher; sample more often when it did not.

After Mullapudi et al. as compared in the AMS paper: every sampled frame is one upload at high quality, and every
training that changed something is one update.

Differs from the paper: the interval between samples counts in seconds of the stream, not in frames of a 30 fps video,
and the table of systems sets a smaller step, since the published 0.01 diverges on networks this small.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.ranges import faults_in
from driftlab.platform.core.records import Stored, Trained
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming
from driftlab.platform.streaming.codec import codec_faults
from driftlab.platform.streaming.sampling import newest_s


@dataclass(frozen=True)
class JustInTime(Streaming):
    """Double the interval after a frame that the student predicted well, halve it after one that needed training."""

    threshold: float = 0.75  # mIoU on the sampled frame from which the student is good enough
    shortest_s: float = 8 / 30
    longest_s: float = 64 / 30
    most_steps: int = 8
    codec: str = "jpeg:95"

    feeds_learner = True
    needs_labels = True

    def faults(self) -> list[str]:
        """List every parameter outside its range."""
        ranges = {
            "shortest_s": (0 < self.shortest_s <= self.longest_s, f"in (0, longest_s = {self.longest_s}]"),
            "most_steps": (self.most_steps >= 1, "at least 1"),
            "threshold": (self.threshold >= 0, "at least 0"),
        }
        return faults_in(self, ranges) + codec_faults(self.codec)

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
