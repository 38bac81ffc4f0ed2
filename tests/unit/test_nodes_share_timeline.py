"""The ends of inferences and training batches, against a simulation in small steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.platform.sim.nodes.share_timeline import ShareTimeline
from driftlab.platform.world.processor import task_duration_s, task_end_s

STEP_S = 1 / 64
SHARES = [0.0, 0.25, 0.5, 1.0]


@st.composite
def schedules(draw: st.DrawFn, shares: list[float] = SHARES) -> tuple[tuple[float, float], ...]:
    """Begin at 0, and change at multiples of a step; the last share stays and is above 0."""
    steps = [0, *sorted(draw(st.sets(st.integers(1, 299), max_size=5)))]
    given_shares = draw(st.lists(st.sampled_from(shares), min_size=len(steps), max_size=len(steps)))
    return (*((step * STEP_S, share) for step, share in zip(steps, given_shares, strict=True)), (300 * STEP_S, 0.5))


def at(schedule: tuple[tuple[float, float], ...], time_s: float) -> float:
    return [share for from_s, share in schedule if from_s <= time_s][-1]


def simulated(start_s: float, alone_s: float, share_at) -> float:
    """Work step by step; inside the last one, a part of it."""
    now_s, left_s = start_s, alone_s
    while True:
        done = STEP_S * share_at(now_s)
        if done and done >= left_s - 1e-12:
            return now_s + max(0.0, left_s) / share_at(now_s)
        now_s, left_s = now_s + STEP_S, left_s - done


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(schedule=schedules(), start=st.integers(0, 280), alone=st.integers(1, 200))
def test_the_time_that_a_work_takes(schedule, start, alone):
    start_s, alone_s = start * STEP_S, alone * STEP_S / 3
    wanted = simulated(start_s, alone_s, lambda now_s: at(schedule, now_s))
    assert task_end_s(start_s, alone_s, schedule) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    inference=schedules([0.0, 0.25, 0.5]),
    training=schedules([0.0, 0.25, 0.5]),
    batch=st.integers(0, 250),
    start=st.integers(0, 280),
    alone=st.integers(1, 150),
    ended=st.booleans(),
)
def test_inference_has_both_shares_while_no_batch_is_trained(inference, training, batch, start, alone, ended):
    """For a training batch that continues, and for one that ended before the inference."""
    pace, batch_s, start_s, alone_s = ShareTimeline(), batch * STEP_S, start * STEP_S, alone * STEP_S
    pace.extend(5.0, inference, training)
    pace.begin_batch(batch_s, STEP_S * 37)
    end_s = simulated(batch_s, STEP_S * 37, lambda now_s: at(training, now_s))
    assert pace.batch_end_s() == pytest.approx(end_s, abs=1e-9)
    if ended:
        pace.end_batch(pace.batch_end_s())

    def share_at(now_s: float) -> float:  # a mean in the step in which training ends
        part = min(1.0, max(0.0, (end_s - now_s) / STEP_S)) if now_s >= batch_s else 0.0
        return at(inference, now_s) + (1 - part) * at(training, now_s)

    wanted = simulated(start_s, alone_s, share_at)
    assert start_s + pace.inference_duration_s(start_s, alone_s) == pytest.approx(wanted, abs=STEP_S)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(schedule=schedules(), start=st.integers(0, 200), later=st.integers(0, 200))
def test_the_trained_fraction_of_a_batch(schedule, start, later):
    pace, start_s, now_s = ShareTimeline(), start * STEP_S, (start + later) * STEP_S
    pace.extend(5.0, schedule)
    pace.begin_batch(start_s, 0.7)
    worked_s = sum(STEP_S * at(schedule, (start + step) * STEP_S) for step in range(later))
    assert pace.batch_fraction(now_s) == pytest.approx(min(1.0, worked_s / 0.7))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(schedule=schedules(), training=schedules(), start=st.integers(0, 280), before=st.integers(0, 280))
def test_dropping_past_shares_changes_no_later_time(schedule, training, start, before):
    """Works that begin later take as long, to the bit."""
    pace, whole = ShareTimeline(), ShareTimeline()
    for one in (pace, whole):
        one.extend(5.0, schedule, training)
    pace.drop_before(min(start, before) * STEP_S)
    assert len(pace.inference_share) <= len(schedule)
    assert pace.inference_duration_s(start * STEP_S, 0.3) == whole.inference_duration_s(start * STEP_S, 0.3)


def test_shares_of_a_batch_in_training_are_not_dropped():
    pace = ShareTimeline()
    pace.extend(5.0, ((0.0, 0.5), (1.0, 1.0), (2.0, 0.5)))
    pace.begin_batch(0.5, 1.0)
    end_s = pace.batch_end_s()
    pace.drop_before(4.0)
    assert pace.batch_end_s() == end_s == 1.75
    pace.end_batch(end_s)
    pace.drop_before(4.0)
    assert pace.inference_share == ((4.0, 0.5),)


def test_a_share_that_never_comes_back():
    assert task_duration_s(0.5, 1.0, ((0.0, 1.0), (1.0, 0.0))) == math.inf
