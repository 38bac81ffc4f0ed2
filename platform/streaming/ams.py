"""AMS: buffer sampled frames, train on a horizon of them, and adapt both rates to the teacher's labels.

Differs from the paper: samples are stamped with the time of capture, not of receipt (`stamp`), and a horizon of 120 s
suits streams of some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming import rates
from driftlab.platform.streaming.base import (
    DownlinkPlan,
    Sampling,
    Seen,
    Stamp,
    StreamFacts,
    Streaming,
    Wire,
    choose_times,
)
from driftlab.platform.streaming.rates import Rates, SamplingControl, TrainingControl
from driftlab.platform.streaming.wire.samples import codec_faults

MIN_RATE_SHARE = 0.2  # of its rate that a device keeps in one visit, even if the server is very late
MAX_SCALE = 4  # a frame then has sixteen times the pixels


@dataclass(frozen=True)
class Ams(Streaming):
    """Send a buffer of frames per interval; rate and interval follow how fast the teacher's labels change."""

    interval_s: Annotated[float, Gt(0), Means("time between two uploads", "s")] = 10.0
    longest: Annotated[float, Ge(1), Means("how far a static scene may stretch the interval", "intervals")] = 6.0
    horizon_s: Annotated[float, Gt(0), Means("age up to which samples are trained on", "s")] = 120.0
    low_fps: Annotated[float, Gt(0), Means("lowest sampling rate", "frames/s")] = 0.1
    high_fps: Annotated[float, Gt(0), Means("highest sampling rate", "frames/s")] = 1.0
    first_fps: Annotated[
        float | None, Gt(0), Means("first sampling rate; none: high_fps, as in the paper", "frames/s")
    ] = None
    control: Annotated[
        Literal["tanh", "linear", "scaled", "fixed"], Means("how the sampling rate follows the change of the labels")
    ] = "tanh"
    target: Annotated[float, Gt(0), Means("change of the labels between samples that the controller aims at")] = 0.4
    slowdown: Annotated[bool, Means("whether the training interval adapts too")] = True
    atr_step_s: Annotated[
        float | None, Gt(0), Means("time between two steps of the training interval; none: one per upload", "s")
    ] = None
    patience: Annotated[
        float | None, Gt(0), Means("lateness of samples before fewer are taken; none: as in the paper", "intervals")
    ] = None
    codec: Annotated[str, Means("how frames are packed for the link: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = (
        "h264"
    )
    values: Annotated[
        Literal["fp32", "fp16", "bf16", "int8", "int4"], Means("how the values of an update are written")
    ] = "fp16"
    mask: Annotated[
        Literal["raw", "gzip", "gaps", "rice", "runs"], Means("how an update says which weights it changes")
    ] = "gzip"
    feedback: Annotated[bool, Means("whether what rounding left out is added to the next update")] = False
    first_train_s: Annotated[float, Ge(0), Means("time before which uploads are only stored", "s")] = 0.0
    stamp: Annotated[Stamp, Means("which time of a sample the horizon goes by")] = "capture"
    scale: Annotated[
        int, Ge(1), Le(MAX_SCALE), Means("how many times larger than the student sees them frames are sent")
    ] = 1

    feeds_learner = True

    def faults(self) -> list[str]:
        """Name what does not fit together, and a codec that is not known."""
        return [*self._rate_faults(), *self._control_faults(), *codec_faults(self.codec)]

    def _rate_faults(self) -> Iterator[str]:
        if self.high_fps < self.low_fps:
            yield f"'high_fps' is {self.high_fps}, must be at least low_fps = {self.low_fps}"
        elif self.first_fps is not None and not self.low_fps <= self.first_fps <= self.high_fps:
            yield f"'first_fps' is {self.first_fps}, must be in [{self.low_fps}, {self.high_fps}], low_fps to high_fps"

    def _control_faults(self) -> Iterator[str]:
        """Refuse settings that the choice of control leaves without effect."""
        if self.patience is not None and self.control == "fixed":
            yield f"'patience' is {self.patience}, must be none with control = fixed"
        if self.atr_step_s is not None and (self.control == "fixed" or not self.slowdown):
            yield f"'atr_step_s' is {self.atr_step_s}, must be none with control = fixed or slowdown = false"

    def start(self, session: StreamFacts) -> Rates:
        return Rates(self.high_fps if self.first_fps is None else self.first_fps, self.interval_s)

    def plan_uplink(self, state: Rates, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Fill the next buffer evenly and send it at the end of the interval."""
        stop_s = now_s + state.interval_s
        times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=state.fps)
        plan = Sampling(times_s, send_s=stop_s, codec=self.codec, rate_fps=state.fps)
        return replace(plan, scale=self.scale, stamp=self.stamp)

    def plan_downlink(self, state: Rates, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Set both rates by the new φ-scores, and train on the samples within the horizon."""
        wire = Wire(self.values, self.mask, self.feedback)
        after = self._advance(state, stored, now_s)
        return DownlinkPlan(
            after,
            Phase() if now_s >= self.first_train_s else None,
            oldest_s=now_s - self.horizon_s,
            wire=wire,
            rate_fps=after.fps,
            interval_s=after.interval_s,
        )

    def _advance(self, state: Rates, stored: Stored, now_s: float) -> Rates:
        if self.control == "fixed":
            return state
        relief = self._relief(now_s - stored.newest_s)
        sampling, training = self._sampling(self.control), self._training()
        return rates.update_rates(state, stored.phis, sampling, training, relief=relief, now_s=now_s)

    def _relief(self, late_s: float) -> float:
        """Return the share of its rate that a device keeps: the later its samples are trained on, the less."""
        if self.patience is None or late_s <= 0:
            return 1.0
        return min(1.0, max(MIN_RATE_SHARE, self.patience * self.interval_s / late_s))

    def _sampling(self, mode: rates.Mode) -> SamplingControl:
        """Scale the steps of the rate with its range: a faster world behaves like the same world on a faster clock."""
        usual = SamplingControl(mode, self.target, low_fps=self.low_fps, high_fps=self.high_fps)
        if mode == "scaled":  # its gain is per frame/s already
            return usual
        return replace(usual, gain_fps=usual.gain_fps * self.high_fps, most_fps=usual.most_fps * self.high_fps)

    def _training(self) -> TrainingControl:
        usual = TrainingControl(longest=self.longest if self.slowdown else 1.0)
        step_s = usual.step_s * self.interval_s / usual.shortest_s
        return replace(usual, shortest_s=self.interval_s, step_s=step_s, every_s=self.atr_step_s)
