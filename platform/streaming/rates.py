"""How often to sample (ASR) and how often to train (ATR): two controllers, pure functions of state and φ-scores.

ASR raises the sampling rate while the teacher's answers change more than a target from sample to sample, and lowers it
while they change less. Once it stays low, ATR lengthens the time between updates, step by step, and returns to the
shortest as soon as the rate has risen.

The paper gives neither the target nor the gain; both are those of its released code. With them the rate never settles
below about 0.6 frames/s: if answers decorrelate as 1 - exp(-c / rate), the fixed point is c / 0.51 and the loop is
stable only for a gain below 6.5 times that. `scaled` lets the gain follow the rate and settles everywhere.

Differs from the paper: the gain of ASR saturates unless `linear` is asked for; ATR goes by the mean of the last rates,
not by the last one, ends at a longest interval, and steps whenever the rate is set, unless it has a clock of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["tanh", "linear", "scaled"]


@dataclass(frozen=True)
class SamplingControl:
    """Parameters of ASR."""

    mode: Mode = "tanh"
    target: float = 0.4  # the φ-score at which the rate stays
    gain_fps: float = 4.0  # change of the rate per unit of φ, for small differences (`scaled`: per frame/s of rate)
    most_fps: float = 0.2  # `tanh`: the largest change of the rate in one update
    low_fps: float = 0.1
    high_fps: float = 1.0


@dataclass(frozen=True)
class TrainingControl:
    """Parameters of ATR; the two thresholds are shares of the highest sampling rate."""

    shortest_s: float = 10.0
    longest: float = 6.0  # times the shortest
    step_s: float = 2.0
    slow_below: float = 0.25
    fast_above: float = 0.35
    window: int = 5  # rates to average; the released code intended five and used none
    every_s: float | None = None  # time between two steps, as in the paper; none: a step whenever the rate is set


@dataclass(frozen=True)
class Rates:
    """The state of both controllers."""

    fps: float
    interval_s: float
    slow: bool = False
    recent_fps: tuple[float, ...] = ()
    stepped_s: float = 0.0  # time of ATR's last step, where it has a clock of its own


def update_rates(
    rates: Rates,
    phis: Sequence[float],
    sampling: SamplingControl,
    training: TrainingControl,
    *,
    relief: float = 1.0,
    now_s: float = 0.0,
) -> Rates:
    """Update both controllers with the φ-scores since the last update; without scores both stay.

    The new rate is multiplied by `relief`, which is below 1 when the server falls behind.
    """
    if not phis:
        return rates
    fps = max(sampling.low_fps, relief * next_sampling_fps(rates.fps, sum(phis) / len(phis), sampling))
    return next_training_interval(replace(rates, fps=fps), training, sampling.high_fps, now_s)


def next_sampling_fps(fps: float, phi: float, sampling: SamplingControl) -> float:
    """Return the next sampling rate (ASR, equation 1)."""
    error = phi - sampling.target
    if sampling.mode == "tanh":
        change = sampling.most_fps * math.tanh(sampling.gain_fps / sampling.most_fps * error)
    else:
        change = sampling.gain_fps * error * (fps if sampling.mode == "scaled" else 1.0)
    return min(sampling.high_fps, max(sampling.low_fps, fps + change))


def next_training_interval(rates: Rates, training: TrainingControl, high_fps: float, now_s: float = 0.0) -> Rates:
    """Return the next training interval (ATR, equation 2) for the rate that has just been set."""
    recent = (*rates.recent_fps, rates.fps)[-training.window :]
    mean = sum(recent) / len(recent)
    threshold = training.fast_above if rates.slow else training.slow_below
    slow = mean <= threshold * high_fps if rates.slow else mean < threshold * high_fps
    steps, stepped_s = _steps(rates, training, slow, now_s)
    longer_s = min(rates.interval_s + steps * training.step_s, training.longest * training.shortest_s)
    after = replace(rates, slow=slow, recent_fps=recent, stepped_s=stepped_s)
    return replace(after, interval_s=longer_s if slow else training.shortest_s)


def _steps(rates: Rates, training: TrainingControl, slow: bool, now_s: float) -> tuple[int, float]:
    """Count the steps that lengthen the interval since the rate was last set; return the time of the last step too.

    Until now the scene counts as slow or fast by the previous rate; a step that is due now uses the new one.
    """
    if training.every_s is None:
        return 1, rates.stepped_s
    passed = math.floor((now_s - rates.stepped_s) / training.every_s + 1e-9)
    stepped_s = rates.stepped_s + passed * training.every_s
    falls_on_now = passed > 0 and math.isclose(stepped_s, now_s, rel_tol=0, abs_tol=1e-6)
    earlier = passed - falls_on_now
    return (earlier if rates.slow else 0) + (falls_on_now if slow else 0), stepped_s
