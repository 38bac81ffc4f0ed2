"""On-device: collect samples from the stream, then train on the device; no message is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, choose_times


@dataclass(frozen=True)
class Learned:
    """The state: the domain of the last phase."""

    domain: int | None = None


@dataclass(frozen=True)
class OnDevice(Streaming):
    """Check every `period_s` seconds whether to train; if so, sample for one period and train on the samples."""

    period_s: Annotated[
        float, Gt(0), Means("time between two looks whether to learn, and length of the sampling", "s")
    ] = 10.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 2.0
    horizon_s: Annotated[
        float | None, Gt(0), Means("how long samples are kept; none: for the phase that they were taken for", "s")
    ] = None
    trigger: Annotated[Literal["period", "entropy", "distance", "domain"], Means("what makes the device learn")] = (
        "period"
    )
    threshold: Annotated[
        float, Ge(0), Means("from where on the trigger asks: entropy as a share of the largest, or distance")
    ] = 0.3
    iterations: Annotated[int | None, Ge(1), Means("steps of a phase; none: as many as the adaptation has")] = None
    learns: Annotated[
        Literal["instead", "beside"], Means("whether a phase replaces answering or shares the machine")
    ] = "beside"

    feeds_learner = True
    place = "device"

    @property
    def notices(self) -> bool:
        return self.trigger != "period"

    def start(self, session: StreamFacts) -> Learned:
        return Learned()

    def plan_uplink(self, state: Learned, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample for one period from now where the trigger fires; check again after the period.

        After a told domain was sampled, the next check leaves a period for the phase, which learns its number.
        """
        stop_s = now_s + self.period_s
        times_s = (
            choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps) if self._asked(state, seen) else ()
        )
        next_s = stop_s + self.period_s if times_s and self.trigger == "domain" else None
        return Sampling(times_s, send_s=stop_s, rate_fps=self.rate_fps, next_s=next_s)

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
