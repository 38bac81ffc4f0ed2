"""On-device phases: collect samples of the stream, then train on the device; no message is sent."""

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
    """The state: the domain of the newest samples that were trained on."""

    domain: int | None = None


@dataclass(frozen=True)
class OnDevice(Streaming):
    """On-device phases: every `period_s` seconds test a trigger, sample, and train."""

    period_s: Annotated[
        float, Gt(0), Means("time between two tests of the trigger, and duration of the sampling", "s")
    ] = 10.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 2.0
    horizon_s: Annotated[
        float | None, Gt(0), Means("age up to which samples are trained on; none: one period", "s")
    ] = None
    trigger: Annotated[Literal["period", "entropy", "distance", "domain"], Means("condition that starts a phase")] = (
        "period"
    )
    threshold: Annotated[
        float, Ge(0), Means("value at which the trigger fires: entropy as a share of its maximum, or distance")
    ] = 0.3
    iterations: Annotated[int | None, Ge(1), Means("steps of a phase; none: the number that the adaptation sets")] = (
        None
    )
    once: Annotated[
        bool, Means("with the trigger domain: whether a domain is sampled once, even if its phase outlasts a period")
    ] = False
    training_runs: Annotated[
        Literal["exclusive", "concurrent"], Means("whether a phase pauses inference or shares the processor with it")
    ] = "concurrent"
    costs_time: Annotated[bool, Means("whether labelling and training take time; false is a bound")] = True

    feeds_learner = True

    @property
    def learner_site(self) -> Literal["device"]:
        return "device"

    @property
    def uses_statistics(self) -> bool:
        return self.trigger != "period"

    def start(self, session: StreamFacts) -> Learned:
        return Learned()

    def plan_uplink(self, state: Learned, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Sample for one period if the trigger fires; test it again after the period.

        With the trigger `domain` the next test comes one period later, because only the phase stores the new domain.
        """
        stop_s, times_s = now_s + self.period_s, tuple[float, ...]()
        if self._fires(state, seen):
            times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        next_s = stop_s + self.period_s if times_s and self.trigger == "domain" else None
        sampled = seen.domain if times_s else seen.state
        return Sampling(times_s, send_s=stop_s, rate_fps=self.rate_fps, next_s=next_s, state=sampled)

    def plan_downlink(self, state: Learned, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on the samples of this period, or of the horizon if one is set."""
        horizon_s = self.period_s if self.horizon_s is None else self.horizon_s
        return DownlinkPlan(Learned(stored.domain), Phase(self.iterations), oldest_s=stored.newest_s - horizon_s)

    def _fires(self, state: Learned, seen: Seen) -> bool:
        """Return whether the device's observations fire the trigger."""
        if self.trigger == "period":
            return True
        if self.trigger == "domain":
            done = (state.domain, seen.state) if self.once else (state.domain,)
            return seen.domain is not None and seen.domain not in done
        observed = seen.entropy if self.trigger == "entropy" else seen.distance
        return observed is not None and observed >= self.threshold
