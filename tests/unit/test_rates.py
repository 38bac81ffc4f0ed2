"""The φ-score and the rate controllers of AMS against closed forms of the paper's equations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from driftlab.datasets.frames import IGNORE
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION
from driftlab.platform.streaming.ams import Ams
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.streaming.rates import (
    Rates,
    SamplingControl,
    TrainingControl,
    next_sampling_fps,
    next_training_interval,
    update_rates,
)

FACTS = StreamFacts(2.0, 600.0)


def settle(c: float, mode: str, updates: int = 400) -> list[float]:
    """Return the rates of ASR for labels that decorrelate as 1 - exp(-c × time between samples)."""
    sampling, fps, trace = SamplingControl(mode=mode), 1.0, []
    for _ in range(updates):
        fps = next_sampling_fps(fps, 1 - math.exp(-c / fps), sampling)
        trace.append(fps)
    return trace


def test_phi_of_label_maps():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, (2, 20, 30), dtype=np.uint8)
    assert SEGMENTATION.phi(a, a, 5) == 0
    assert SEGMENTATION.phi(np.zeros_like(a), np.ones_like(a), 5) == 1
    assert SEGMENTATION.phi(a, b, 5) == SEGMENTATION.phi(b, a, 5)
    renamed = np.array([3, 0, 4, 1, 2], dtype=np.uint8)
    assert SEGMENTATION.phi(renamed[a], renamed[b], 5) == pytest.approx(SEGMENTATION.phi(a, b, 5))
    by_hand = np.mean([1 - np.sum((a == c) & (b == c)) / np.sum((a == c) | (b == c)) for c in range(5)])
    assert SEGMENTATION.phi(a, b, 5) == pytest.approx(by_hand)


def test_phi_ignores_unlabelled_pixels_of_either_side():
    a = np.array([[0, 0, 1, 1]], dtype=np.uint8)
    assert SEGMENTATION.phi(np.array([[0, IGNORE, 1, 1]], dtype=np.uint8), a, 2) == 0
    assert SEGMENTATION.phi(a, np.array([[0, 0, 7, 1]], dtype=np.uint8), 2) == 0
    assert SEGMENTATION.phi(np.full_like(a, IGNORE), a, 2) == 0


def test_phi_of_the_other_tasks():
    assert CLASSIFICATION.phi(2, 2, 3) == 0
    assert CLASSIFICATION.phi(2, 1, 3) == 1
    assert CLASSIFICATION.phi(2, 7, 3) == CLASSIFICATION.phi(IGNORE, 1, 3) == 0
    boxes = np.array([[6, 0, 0, 10, 10], [7, 20, 0, 30, 10]], dtype=np.float32)
    assert DETECTION.phi(boxes, boxes[::-1], 8) == 0
    assert DETECTION.phi(boxes, boxes[:1], 8) == pytest.approx(1 / 3) == DETECTION.phi(boxes[:1], boxes, 8)
    assert DETECTION.phi(boxes, boxes[:0], 8) == 1
    assert DETECTION.phi(boxes[:0], boxes[:0], 8) == 0


@pytest.mark.parametrize("seed", range(20))
def test_phi_of_boxes_is_symmetric_and_invariant_to_renaming(seed):
    """Boxes of a grid, all slightly moved and some removed."""
    rng = np.random.default_rng(seed)
    corners = 40.0 * np.argwhere(np.ones((3, 3)))
    before = np.hstack([rng.integers(5, 8, (9, 1)), corners, corners + 20])
    now = rng.permutation(before)[: rng.integers(1, 9)]
    now[:, 1:] += rng.uniform(-6, 6, now[:, 1:].shape)
    score = DETECTION.phi(now, before, 8)
    assert 0 < score < 1
    assert DETECTION.phi(before, now, 8) == score
    names = np.array([6, 7, 5])
    for boxes in (now, before):
        boxes[:, 0] = names[boxes[:, 0].astype(int) - 5]
    assert DETECTION.phi(now, before, 8) == score
    for change in ([0, 20, 20, 20, 20], [3, 0, 0, 0, 0]):  # no overlap; other classes
        other = before + np.array(change)
        assert DETECTION.phi(other, before, 8) == DETECTION.phi(before, other, 8) == 1


@pytest.mark.parametrize("mode", ["tanh", "linear", "scaled"])
def test_rate_is_constant_at_the_target_and_within_its_bounds(mode):
    sampling = SamplingControl(mode=mode)
    assert next_sampling_fps(0.55, 0.4, sampling) == 0.55
    assert next_sampling_fps(1.0, 1.0, sampling) == 1.0
    assert next_sampling_fps(0.1, 0.0, sampling) == 0.1
    assert all(0.1 <= fps <= 1.0 for fps in settle(0.3, mode))


def test_the_rate_rises_and_falls_as_fast_as_the_released_code():
    fps, updates = 0.1, 0
    while fps < 1.0:
        fps, updates = next_sampling_fps(fps, 1.0, SamplingControl()), updates + 1
    assert updates == math.ceil(0.9 / 0.2)
    assert next_sampling_fps(0.5, 0.41, SamplingControl()) == pytest.approx(0.5 + 0.2 * math.tanh(20 * 0.01))
    assert next_sampling_fps(0.5, 0.41, SamplingControl(mode="linear")) == pytest.approx(0.54)
    assert next_sampling_fps(0.5, 0.41, SamplingControl(mode="scaled")) == pytest.approx(0.52)
    fps = 1.0
    for _ in range(5):
        fps = next_sampling_fps(fps, 0.0, SamplingControl())
    assert fps == 0.1


@pytest.mark.parametrize("c", [0.06, 0.1, 0.2, 0.35, 0.5])
def test_the_scaled_rate_settles_at_the_closed_form(c):
    assert settle(c, "scaled")[-1] == pytest.approx(c / -math.log(0.6), rel=0.01)


def test_the_rate_of_the_released_code_oscillates_beyond_the_stability_bound():
    for c, swings in ((0.1, True), (0.2, True), (0.4, False)):
        tail = settle(c, "tanh")[-50:]
        assert (max(tail) - min(tail) > 0.05) == swings
        assert max(tail) - min(tail) <= 0.4


def test_training_interval_has_hysteresis():
    training, rates, trace = TrainingControl(window=1), Rates(1.0, 10.0), []
    for fps in (0.3, 0.2, 0.3, 0.4):
        rates = next_training_interval(Rates(fps, rates.interval_s, rates.slow, rates.recent_fps), training, 1.0)
        trace.append(rates.interval_s)
    assert trace == [10, 12, 14, 10]


def test_training_interval_grows_at_a_fixed_period():
    """Steps every 10 s; an update at the end of each interval; the rate falls at 10 s and rises at 96 s."""
    training, rates, now_s, trace = TrainingControl(window=1, period_s=10.0), Rates(1.0, 10.0), 0.0, []
    for fps in (0.2, 0.2, 0.3, 0.3, 0.2, 0.4):
        now_s += rates.interval_s
        rates = next_training_interval(replace(rates, fps=fps), training, 1.0, now_s)
        trace.append((now_s, rates.interval_s, rates.stepped_s))
    assert trace == [
        (10, 12, 10),  # the step at 10 s finds the slow rate
        (22, 14, 20),  # one at 20 s
        (36, 16, 30),  # one at 30 s
        (52, 20, 50),  # two, at 40 and 50 s
        (72, 24, 70),  # two, at 60 and 70 s
        (96, 10, 90),  # two as well, and then the rate has risen
    ]


def test_step_follows_the_rate_at_its_time():
    training = TrainingControl(window=1, period_s=10.0)
    fell_late = next_training_interval(Rates(0.2, 10.0), training, 1.0, 39.0)  # three steps due in the fast mode
    assert (fell_late.interval_s, fell_late.stepped_s) == (10.0, 30.0)
    assert next_training_interval(replace(fell_late, fps=0.2), training, 1.0, 39.5).interval_s == 10.0  # none due since
    assert next_training_interval(replace(fell_late, fps=0.2), training, 1.0, 40.0).interval_s == 12.0
    assert next_training_interval(replace(fell_late, fps=0.2), training, 1.0, 1e4).interval_s == 60.0
    often = next_training_interval(Rates(0.2, 10.0), replace(training, period_s=0.1), 1.0, 0.3)
    assert (often.interval_s, often.stepped_s) == (12.0, pytest.approx(0.3))


def test_a_static_scene_ends_at_the_longest_interval():
    rates, trace = Rates(SamplingControl().max_fps, TrainingControl().min_interval_s), []
    for _ in range(40):
        rates = update_rates(rates, (0.0, 0.0), SamplingControl(), TrainingControl(window=1))
        trace.append(rates.interval_s)
    rising = trace[trace.index(12.0) :]
    assert rising[:25] == [float(s) for s in range(12, 62, 2)]
    assert set(rising[25:]) == {60.0}
    assert rates.fps == 0.1


class TestParameters:
    """Every constant of both controllers is a parameter of the member, with the value that it had before."""

    def test_defaults_are_those_of_the_controllers(self):
        member = Ams()
        assert member._sampling_control("tanh") == SamplingControl()
        assert member._training_control() == TrainingControl()

    def test_steps_scale_with_the_rates_and_the_interval(self):
        member = Ams(max_fps=2.0, min_fps=0.2, interval_s=7.0)
        assert member._sampling_control("tanh") == SamplingControl(
            "tanh", gain_fps=8.0, max_step_fps=0.4, min_fps=0.2, max_fps=2.0
        )
        assert member._sampling_control("scaled").gain_fps == 4.0
        assert member._training_control().step_s == 2.0 * 7.0 / 10.0

    def test_printed_controllers_are_equations_1_and_2(self):
        member = SYSTEMS["ams-printed"].streaming.make()
        assert member._sampling_control(member.control) == SamplingControl("linear")
        assert member._training_control() == TrainingControl(max_stretch=math.inf, window=1, period_s=10.0)

    def test_the_last_rate_responds_to_a_change_sooner_than_a_mean_of_five(self):
        """A scene is still for fifty rounds and then changes: φ rises from 0 to 0.8."""
        waited = {}
        for window in (1, 5):
            member = Ams(slowdown_rates=window)
            rates, training, sampling = (
                member.start(FACTS),
                member._training_control(),
                member._sampling_control("tanh"),
            )
            for _ in range(50):
                rates = update_rates(rates, (0.0,), sampling, training)
            assert rates.interval_s == 60.0
            waited[window] = 0
            while rates.interval_s > 10.0:
                rates, waited[window] = update_rates(rates, (0.8,), sampling, training), waited[window] + 1
        assert waited == {1: 2, 5: 4}

    @pytest.mark.parametrize(
        ("parameter", "value", "field"),
        [("phi_target", 0.3, "phi_target"), ("rate_gain", 2.0, "gain_fps"), ("max_rate_step", 0.1, "max_step_fps")],
    )
    def test_a_parameter_of_the_rate_reaches_its_controller(self, parameter, value, field):
        assert getattr(Ams(**{parameter: value})._sampling_control("tanh"), field) == value

    @pytest.mark.parametrize(
        ("parameter", "value", "field"),
        [("slowdown_below", 0.1, "slowdown_below"), ("slowdown_until", 0.5, "slowdown_until"),
         ("slowdown_rates", 2, "window"), ("interval_step_s", 3.0, "step_s"), ("max_interval", 2.0, "max_stretch")],
    )  # fmt: skip
    def test_a_parameter_of_the_interval_reaches_its_controller(self, parameter, value, field):
        assert getattr(Ams(**{parameter: value})._training_control(), field) == value
