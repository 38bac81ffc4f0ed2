"""Utilities against closed forms: the served jobs, and the cost of waiting."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.results.relations.utility import (
    Jobs,
    continuous,
    discrete,
    needed_accuracy,
    overhead,
    relative,
    relative_period,
    served_jobs,
)

LATE = Jobs(np.array([0.5, 1, 0.25]), np.array([12.0, 10, 15]), np.array([8.0, 0, 5]), 10.0)


def steady(work: float, count: int = 781) -> np.ndarray:
    return np.full(count, work)


@pytest.mark.parametrize(
    ("work", "served", "drained", "unqueued"),
    [
        (41.1, 759, 759, 391),
        (97.1, 321, 322, 261),
        (97.7, 319, 320, 261),
        (121.0, 258, 259, 196),
        (160.1, 195, 196, 157),
        (195.2, 160, 161, 157),
    ],
)
def test_the_number_of_served_jobs_follows_the_recursion(work, served, drained, unqueued):
    found = [served_jobs(steady(work), 39.9, **how) for how in ({}, {"drain": True}, {"queue": False})]
    assert [len(rows) for rows in found] == [served, drained, unqueued]


def test_a_job_that_arrives_as_the_processor_becomes_free_replaces_a_waiting_one():
    assert list(served_jobs(steady(2, 10), 1.0)) == [0, 2, 4, 6, 8]
    assert list(served_jobs(steady(2, 10), 1.0, tie="waiting", drain=True)) == [0, 1, 3, 5, 7, 9]


def test_time_does_not_matter_if_no_job_is_missed():
    jobs = Jobs(LATE.accuracy, steady(10.0, 3), steady(0.0, 3), 10.0)
    for found in (discrete(jobs, 10.0), continuous(jobs, 20.0), relative(jobs)):
        assert found.value == pytest.approx(LATE.accuracy.mean())


def test_missed_jobs_count_zero_or_chance():
    jobs = Jobs(np.array([1.0, 0, 0.5, 0]), steady(1.0, 4), steady(1.0, 4), 1.0)
    assert discrete(jobs, 1.0).value == pytest.approx(0.375)
    assert discrete(jobs, 1.0, chance=0.1).value == pytest.approx(0.425)
    assert relative(jobs).value == pytest.approx(0.75)  # results 3 and 1 also serve jobs 4 and 2
    assert needed_accuracy(0.308, 0.4097) == pytest.approx(0.752, abs=5e-4)


def test_waiting_for_the_given_patience_halves_the_value_of_a_prediction():
    found = continuous(LATE, 20.0)
    assert found.value == pytest.approx(0.379630, abs=1e-6)
    assert found.served * found.timeliness == pytest.approx(0.399691, abs=1e-6)
    assert found.alignment == pytest.approx(-0.020062, abs=1e-6)
    late = Jobs(steady(1, 3), steady(39.9, 3), steady(57.8, 3), 39.9)
    assert continuous(late, 50.0).value == pytest.approx((1 + 2 * 0.1487) / 3, abs=1e-4)


def test_overhead_is_the_time_above_plain_inference():
    assert overhead(Jobs(steady(0.9, 4), np.array([1.0, 1, 0.5, 2]), np.array([3.0, 0, 0, 0]), 1.0)) == 1.0


def test_relative_speed_counts_the_jobs_that_pass_meanwhile():
    ratios = (1, 1.03, 2.43, 3.03, 4.01, 4.89)
    assert [relative_period(ratio, 1.0) for ratio in ratios] == [1, 2, 3, 4, 5, 5]
    assert relative_period(3 + 1e-9, 1.0) == 3 and relative_period(4.89, 1.0, speed=0.1) == 1
