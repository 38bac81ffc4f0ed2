"""AMS: buffer sampled frames, train on a horizon of them, and adapt both rates to the teacher's labels.

Differs from the paper: samples are stamped with the time of capture, not of receipt (`stamp`), and a horizon of 120 s
suits streams of some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.ranges import faults_in
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming import rates
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, Stamp, StreamFacts, Streaming, Wire
from driftlab.platform.streaming.codec import codec_faults
from driftlab.platform.streaming.rates import Rates, SamplingControl, TrainingControl
from driftlab.platform.streaming.sampling import choose_times

MIN_RATE_SHARE = 0.2  # of its rate that a device keeps in one visit, even if the server is very late
MAX_SCALE = 4  # a frame then has sixteen times the pixels


@dataclass(frozen=True)
class Ams(Streaming):
    """Send a buffer of frames per interval; rate and interval follow how fast the teacher's labels change."""

    interval_s: float = 10.0
    longest: float = 6.0  # times the interval: the longest interval in a static scene
    horizon_s: float = 120.0
    low_fps: float = 0.1
    high_fps: float = 1.0
    first_fps: float | None = None  # none: start at high_fps, as in the paper
    control: Literal["tanh", "linear", "scaled", "fixed"] = "tanh"
    target: float = 0.4
    slowdown: bool = True  # whether the training interval adapts as well
    atr_step_s: float | None = None  # time between two changes of the interval, as in the paper; none: one per upload
    patience: float | None = None  # lateness in intervals at which the rate is reduced; none: never, as in the paper
    codec: str = "h264"
    values: Literal["fp32", "fp16", "bf16", "int8", "int4"] = "fp16"
    mask: Literal["raw", "gzip", "gaps", "rice"] = "gzip"
    feedback: bool = False
    first_train_s: float = 0.0  # earlier uploads are only stored
    stamp: Stamp = "capture"  # the time of a sample for the horizon
    scale: int = 1  # frames are sent so many times larger than the student's input, and downscaled by the server

    feeds_learner = True

    def faults(self) -> list[str]:
        """List every parameter outside its range."""
        ranges = {
            "interval_s": (self.interval_s > 0, "above 0"),
            "horizon_s": (self.horizon_s > 0, "above 0"),
            "low_fps": (self.low_fps > 0, "above 0"),
            "high_fps": (self.high_fps >= self.low_fps, f"at least low_fps = {self.low_fps}"),
            "first_fps": (
                self.first_fps is None or self.low_fps <= self.first_fps <= self.high_fps,
                f"from low_fps = {self.low_fps} to high_fps = {self.high_fps}, or none",
            ),
            "longest": (self.longest >= 1, "at least 1"),
            "patience": (
                self.patience is None or (self.patience > 0 and self.control != "fixed"),
                "above 0, or none, as with control = fixed",
            ),
            "atr_step_s": (
                self.atr_step_s is None or (self.atr_step_s > 0 and self.slowdown and self.control != "fixed"),
                "above 0, or none, as with slowdown = false and with control = fixed",
            ),
            "first_train_s": (self.first_train_s >= 0, "at least 0"),
            "scale": (1 <= self.scale <= MAX_SCALE, f"a whole number from 1 to {MAX_SCALE}"),
            "target": (self.target > 0, "above 0"),
        }
        return faults_in(self, ranges) + codec_faults(self.codec)

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
