"""On-device: collect samples from the stream, then train on the device; no message is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.ranges import faults_in
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming
from driftlab.platform.streaming.sampling import choose_times


@dataclass(frozen=True)
class Learned:
    """The state: the domain of the last phase."""

    domain: int | None = None


@dataclass(frozen=True)
class OnDevice(Streaming):
    """Check every `period_s` seconds whether to train; if so, sample for one period and train on the samples."""

    period_s: float = 10.0
    rate_fps: float = 2.0
    horizon_s: float | None = None  # how long samples are kept; none: for one phase
    trigger: Literal["period", "entropy", "distance", "domain"] = "period"  # the condition for training
    threshold: float = 0.3  # of entropy as a share of the maximum, or of distance
    iterations: int | None = None  # none: the adaptation's own number
    learns: Literal["instead", "beside"] = "beside"

    feeds_learner = True
    place = "device"

    def faults(self) -> list[str]:
        """List every parameter outside its range."""
        ranges = {
            "period_s": (self.period_s > 0, "above 0"),
            "rate_fps": (self.rate_fps > 0, "above 0"),
            "horizon_s": (self.horizon_s is None or self.horizon_s > 0, "above 0, or none"),
            "threshold": (self.threshold >= 0, "at least 0"),
            "iterations": (self.iterations is None or self.iterations >= 1, "at least 1, or none"),
        }
        return faults_in(self, ranges)

    @property
    def notices(self) -> bool:
        return self.trigger != "period"

    def start(self, session: StreamFacts) -> Learned:
        return Learned()

    def plan_uplink(self, state: Learned, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample for one period from now where the trigger fires; check again after the period."""
        stop_s = now_s + self.period_s
        times_s = (
            choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps) if self._asked(state, seen) else ()
        )
        return Sampling(times_s, send_s=stop_s, rate_fps=self.rate_fps)

    def plan_downlink(self, state: Learned, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on the samples of this period, or of the horizon."""
        kept_s = self.period_s if self.horizon_s is None else self.horizon_s
        return DownlinkPlan(Learned(stored.domain), Phase(self.iterations), oldest_s=stored.newest_s - kept_s)

    def _asked(self, state: Learned, seen: Seen) -> bool:
        """Tell whether the device's observations fire the trigger."""
        if self.trigger == "period":
            return True
        if self.trigger == "domain":
            return seen.domain is not None and seen.domain != state.domain
        noticed = seen.entropy if self.trigger == "entropy" else seen.distance
        return noticed is not None and noticed >= self.threshold
