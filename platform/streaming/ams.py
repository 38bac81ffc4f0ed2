"""AMS (Khani et al., ICCV 2021): server-side distillation on a horizon of samples, at adaptive rates.

The member is the part of Algorithm 1 that decides when: the buffer of an interval (line 18), the samples of the horizon
(line 12), and both rates (Eq. 1 and 2, `rates.py`). Lines 10 to 16, the choice of coordinates and their training, are
Algorithm 2 in the adaptation member `distill`; line 17 is `wire/delta.py`.

Differs from the paper: samples are stamped with the time of capture, not of receipt (`stamp`), and a horizon of 120 s
suits streams of some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import (
    DownlinkPlan,
    Sampling,
    Seen,
    Stamp,
    StreamFacts,
    Streaming,
    Wire,
    choose_times,
    within,
)
from driftlab.platform.streaming.rates import (
    MAX_STRETCH,
    Mode,
    Rates,
    SamplingControl,
    TrainingControl,
    update_rates,
)
from driftlab.platform.streaming.wire.samples import codec_faults

MIN_RELIEF = 0.2  # share of its rate that a device keeps in one update, however late the server is
MAX_SCALE = 4  # a frame then has sixteen times the pixels


@dataclass(frozen=True)
class Ams(Streaming):
    """AMS (ICCV 2021): upload a buffer per interval.

    φ-scores adapt the sampling rate and the training interval (the paper's ASR and ATR).
    """

    interval_s: Annotated[float, Gt(0), Means("time between two uploads", "s")] = 10.0
    horizon_s: Annotated[float, Gt(0), Means("age up to which samples are trained on", "s")] = 120.0
    min_fps: Annotated[float, Gt(0), Means("lowest sampling rate", "frames/s")] = 0.1
    max_fps: Annotated[float, Gt(0), Means("highest sampling rate", "frames/s")] = 1.0
    initial_fps: Annotated[
        float | None, Gt(0), Means("first sampling rate; none: max_fps (the paper gives none)", "frames/s")
    ] = None
    control: Annotated[
        Literal["tanh", "linear", "scaled", "fixed"],
        Means("control law of the adaptive sampling rate; fixed: no control"),
    ] = "tanh"
    phi_target: Annotated[float, Ge(0), Le(1), Means("φ-score at which the sampling rate is constant")] = 0.4
    rate_gain: Annotated[
        float, Gt(0), Means("change of the sampling rate per unit of φ-score, η_r", "max_fps; with scaled: the rate")
    ] = 4.0
    max_rate_step: Annotated[float, Gt(0), Means("largest change of the rate in one round (tanh)", "max_fps")] = 0.2
    adaptive_training: Annotated[bool, Means("whether the training interval adapts too (ATR)")] = True
    slowdown_below: Annotated[float, Ge(0), Means("mean rate below which the interval grows, γ0", "max_fps")] = 0.25
    slowdown_until: Annotated[float, Ge(0), Means("mean rate above which it is reset, γ1", "max_fps")] = 0.35
    slowdown_rates: Annotated[int, Ge(1), Means("number of last rates in this mean; 1 as in the paper")] = 5
    interval_step_s: Annotated[
        float | None, Gt(0), Means("growth of the interval in one step, Δ; none: a fifth of interval_s", "s")
    ] = None
    max_interval: Annotated[
        float | None, Ge(1), Means("longest interval; none: no end, as in the paper", "interval_s")
    ] = MAX_STRETCH
    atr_step_s: Annotated[
        float | None, Gt(0), Means("time between two steps of an adaptive training interval; none: one per upload", "s")
    ] = None
    patience: Annotated[
        float | None,
        Gt(0),
        Means("delay of samples above which the rate is reduced; none: as in the paper", "intervals"),
    ] = None
    codec: Annotated[str, Means("encoding of uploaded frames: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = "h264"
    value_format: Annotated[
        Literal["fp32", "fp16", "bf16", "int8", "int4"], Means("number format of an update's values")
    ] = "fp16"
    mask_encoding: Annotated[
        Literal["raw", "gzip", "gaps", "rice", "runs"], Means("encoding of the positions of the changed weights")
    ] = "gzip"
    error_feedback: Annotated[bool, Means("whether rounding errors are added to the next update (error feedback)")] = (
        False
    )
    first_train_s: Annotated[float, Ge(0), Means("time before which uploads are only stored", "s")] = 0.0
    stamp: Annotated[Stamp, Means("time of a sample that the horizon refers to")] = "capture"
    scale: Annotated[int, Ge(1), Le(MAX_SCALE), Means("size of uploaded frames over the student's input, per side")] = 1

    feeds_learner = True

    def faults(self) -> list[str]:
        """List parameters that contradict each other, and an unknown codec."""
        return [*self._rate_faults(), *self._control_faults(), *codec_faults(self.codec)]

    def _rate_faults(self) -> Iterator[str]:
        if self.max_fps < self.min_fps:
            yield f"'max_fps' is {self.max_fps}, must be at least min_fps = {self.min_fps}"
        elif self.initial_fps is not None and not self.min_fps <= self.initial_fps <= self.max_fps:
            bounds = f"[{self.min_fps}, {self.max_fps}], min_fps to max_fps"
            yield f"'initial_fps' is {self.initial_fps}, must be in {bounds}"

    def _control_faults(self) -> Iterator[str]:
        """List parameters that have no effect with this control."""
        if self.patience is not None and self.control == "fixed":
            yield f"'patience' is {self.patience}, must be none with control = fixed"

    def start(self, session: StreamFacts) -> Rates:
        """Start at the highest rate, unless `initial_fps` is set, and the shortest interval."""
        return Rates(self.max_fps if self.initial_fps is None else self.initial_fps, self.interval_s)

    def allows(self, state: Rates) -> bool:
        """Return whether rate and interval are within the limits of the controllers."""
        longest_s = math.inf if self.max_interval is None else self.interval_s * self.max_interval
        return within(state.fps, self.min_fps, self.max_fps) and within(state.interval_s, self.interval_s, longest_s)

    def plan_uplink(self, state: Rates, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Buffer T_update seconds of samples at the rate r, then send them (Algorithm 1, lines 5 and 18)."""
        stop_s = now_s + state.interval_s
        times_s = choose_times(now_s, stop_s, fps=session.fps, rate_fps=state.fps)
        plan = Sampling(times_s, send_s=stop_s, codec=self.codec, rate_fps=state.fps)
        return replace(plan, scale=self.scale, stamp=self.stamp)

    def plan_downlink(self, state: Rates, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Train on the samples of the last T_horizon seconds, and set both rates by the new φ-scores."""
        phase = Phase() if now_s >= self.first_train_s else None  # Algorithm 1, lines 10 to 16
        oldest_s = now_s - self.horizon_s  # line 12
        wire = Wire(self.value_format, self.mask_encoding, self.error_feedback)  # line 17
        rates = state
        if self.control != "fixed":
            sampling, training = self._sampling_control(self.control), self._training_control()
            relief = self._relief(now_s - stored.newest_s)
            rates = update_rates(state, stored.phis, sampling, training, relief=relief, now_s=now_s)  # Eq. 1 and 2
        return DownlinkPlan(rates, phase, oldest_s, wire=wire, rate_fps=rates.fps, interval_s=rates.interval_s)

    def _sampling_control(self, mode: Mode) -> SamplingControl:
        """Scale ASR's steps by r_max: a stream at twice the speed and twice the rates is controlled alike."""
        unit_fps = 1.0 if mode == "scaled" else self.max_fps  # the gain of `scaled` is per frame/s already
        return SamplingControl(
            mode,
            phi_target=self.phi_target,
            gain_fps=self.rate_gain * unit_fps,
            max_step_fps=self.max_rate_step * unit_fps,
            min_fps=self.min_fps,
            max_fps=self.max_fps,
        )

    def _training_control(self) -> TrainingControl:
        """Scale ATR's step by τ_min unless it is set; without `adaptive_training` the interval stays at τ_min."""
        longest = math.inf if self.max_interval is None else self.max_interval
        return TrainingControl(
            min_interval_s=self.interval_s,
            max_stretch=longest if self.adaptive_training else 1.0,
            step_s=self.interval_s / 5 if self.interval_step_s is None else self.interval_step_s,
            slowdown_below=self.slowdown_below,
            slowdown_until=self.slowdown_until,
            window=self.slowdown_rates,
            period_s=self.atr_step_s,
        )

    def _relief(self, late_s: float) -> float:
        """Return the share of its rate that a device keeps: lower the later its samples are trained on."""
        if self.patience is None or late_s <= 0:
            return 1.0
        return min(1.0, max(MIN_RELIEF, self.patience * self.interval_s / late_s))
