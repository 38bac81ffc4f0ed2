"""Rate controllers of AMS: adaptive sampling (ASR, Eq. 1) and adaptive training (ATR, Eq. 2).

Both are pure functions of a state and of φ-scores. ASR raises the sampling rate while the teacher's labels change by
more than φ_target from sample to sample, and lowers it while they change less. While the rate is low (slowdown mode),
ATR lengthens the interval between updates step by step; it returns to the shortest one once the rate has risen.

The paper gives neither φ_target nor the gain η_r; both are those of its released code. With them the rate never settles
below about 0.6 frames/s: if labels decorrelate as 1 - exp(-c / rate), the fixed point is c / 0.51, and the loop is
stable only for a gain below 6.5 times the fixed point. `scaled` multiplies the gain by the rate and settles at every
rate.

Differs from the paper: the step of ASR saturates unless the mode is `linear`; ATR compares the mean of the last rates
instead of the last one, has a longest interval, and steps whenever the rate is set unless it has a fixed period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["tanh", "linear", "scaled"]
PHI_TARGET = 0.4  # φ-score between consecutive samples at which the rate is constant
MAX_STRETCH = 6.0  # longest training interval over the shortest one


@dataclass(frozen=True)
class SamplingControl:
    """Parameters of ASR."""

    mode: Mode = "tanh"
    phi_target: float = PHI_TARGET  # the φ-score at which the rate is constant
    gain_fps: float = 4.0  # η_r: change of the rate per unit of φ, for small errors (`scaled`: per frame/s of rate)
    max_step_fps: float = 0.2  # `tanh`: the largest change of the rate in one update
    min_fps: float = 0.1  # r_min
    max_fps: float = 1.0  # r_max


@dataclass(frozen=True)
class TrainingControl:
    """Parameters of ATR; both thresholds are shares of r_max."""

    min_interval_s: float = 10.0  # τ_min
    max_stretch: float = MAX_STRETCH  # the longest interval over τ_min
    step_s: float = 2.0  # Δ
    slowdown_below: float = 0.25  # γ_0: enters the slowdown mode
    slowdown_until: float = 0.35  # γ_1: leaves it
    window: int = 5  # rates to average; the released code intended five and used none
    period_s: float | None = None  # δt, time between two steps as in the paper; None: a step whenever the rate is set


@dataclass(frozen=True)
class Rates:
    """The state of both controllers."""

    fps: float  # r_t
    interval_s: float  # T_update
    slow: bool = False  # slowdown mode
    recent_fps: tuple[float, ...] = ()
    stepped_s: float = 0.0  # time of ATR's last step, where it has a fixed period


def update_rates(
    rates: Rates,
    phis: Sequence[float],
    sampling: SamplingControl,
    training: TrainingControl,
    *,
    relief: float = 1.0,
    now_s: float = 0.0,
) -> Rates:
    """Update both rates by the φ-scores since the last update; without scores both are unchanged.

    The new sampling rate is multiplied by `relief`, which is below 1 when the server is late.
    """
    if not phis:
        return rates
    mean_phi = sum(phis) / len(phis)
    fps = max(sampling.min_fps, relief * next_sampling_fps(rates.fps, mean_phi, sampling))
    return next_training_interval(replace(rates, fps=fps), training, sampling.max_fps, now_s)


def next_sampling_fps(fps: float, phi: float, sampling: SamplingControl) -> float:
    """Return r + η (φ - φ_target), clipped to [r_min, r_max] (Eq. 1 of AMS; literal in mode `linear`)."""
    error = phi - sampling.phi_target
    if sampling.mode == "tanh":
        step = sampling.max_step_fps * math.tanh(sampling.gain_fps / sampling.max_step_fps * error)
    else:
        step = sampling.gain_fps * error * (fps if sampling.mode == "scaled" else 1.0)
    return min(sampling.max_fps, max(sampling.min_fps, fps + step))


def next_training_interval(rates: Rates, training: TrainingControl, max_fps: float, now_s: float = 0.0) -> Rates:
    """Return T_update + Δ in slowdown mode, else τ_min, for the rate that has just been set (ATR, Eq. 2)."""
    recent_fps = (*rates.recent_fps, rates.fps)[-training.window :]
    mean_fps = sum(recent_fps) / len(recent_fps)
    leaves, enters = mean_fps > training.slowdown_until * max_fps, mean_fps < training.slowdown_below * max_fps
    slow = not leaves if rates.slow else enters
    steps, stepped_s = _count_steps(rates, training, slow, now_s)
    longer_s = min(rates.interval_s + steps * training.step_s, training.max_stretch * training.min_interval_s)
    interval_s = longer_s if slow else training.min_interval_s
    return replace(rates, interval_s=interval_s, slow=slow, recent_fps=recent_fps, stepped_s=stepped_s)


def _count_steps(rates: Rates, training: TrainingControl, slow: bool, now_s: float) -> tuple[int, float]:
    """Count ATR's steps since the rate was last set; also return the time of the last step.

    A step before now follows the previous mode; a step that is due exactly now follows the new one.
    """
    if training.period_s is None:
        return 1, rates.stepped_s
    passed = math.floor((now_s - rates.stepped_s) / training.period_s + 1e-9)
    stepped_s = rates.stepped_s + passed * training.period_s
    due_now = passed > 0 and math.isclose(stepped_s, now_s, rel_tol=0, abs_tol=1e-6)
    earlier = passed - due_now
    return (earlier if rates.slow else 0) + (due_now if slow else 0), stepped_s
