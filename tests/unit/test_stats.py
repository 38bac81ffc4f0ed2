"""Statistics against closed forms and against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from driftlab.platform.results import stats
from driftlab.platform.results.stats import Estimate

SEEDS = pd.Index([0, 1, 2], name="seed")


@pytest.mark.slow
def test_a_mean_has_the_interval_of_students_t_and_omits_missing_values():
    from scipy import stats as scipy_stats

    values = [0.6, 0.7, 0.75, 0.9]
    low, high = scipy_stats.t.interval(0.95, 3, loc=np.mean(values), scale=scipy_stats.sem(values))
    assert stats.mean([*values, None, math.nan]) == pytest.approx((np.mean(values), low, high, 4))
    assert stats.mean([0.5]) == (0.5, None, None, 1)
    assert stats.mean([None]) is None


def test_factors_are_averaged_by_their_logarithms():
    found = stats.ratio([math.log(2), math.log(8)])
    plain = stats.mean([math.log(2), math.log(8)])
    assert found == pytest.approx((4.0, math.exp(plain.low), math.exp(plain.high), 2))
    assert stats.ratio([]) is None and stats.ratio([0.0]) == (1.0, None, None, 1)


def test_an_interval_is_cut_at_the_possible_values():
    assert Estimate(0.1, -0.2, 1.4, 3).within(0.0, 1.0) == (0.1, 0.0, 1.0, 3)
    assert Estimate(0.1, None, None, 1).within(0.0) == (0.1, None, None, 1)


def test_a_slope_requires_two_points():
    assert stats.slope([0, 1, 2], [1, 3, 5]) == pytest.approx(2.0)
    assert math.isnan(stats.slope([1, 1], [0, 2]))


def test_equal_values_share_their_rank():
    assert stats.rank_correlation([1.0, 2, 3], [10.0, 30, 20]) == pytest.approx(0.5)
    assert stats.rank_correlation([1.0, 1, 3], [2.0, 2, 9]) == pytest.approx(1.0)
    assert math.isnan(stats.rank_correlation([1.0, 1, 1], [1.0, 2, 3]))
    assert math.isnan(stats.rank_correlation([1.0, math.nan, 3], [1.0, 2, 3]))


@pytest.mark.slow
def test_a_rank_correlation_is_that_of_scipy():
    from scipy import stats as scipy_stats

    values = np.random.default_rng(3).integers(0, 9, (2, 40))
    expected = scipy_stats.spearmanr(*values).statistic
    assert stats.rank_correlation(*values) == pytest.approx(expected, rel=1e-12)


def groups(**values: list[float]) -> pd.Series:
    return pd.concat({name: pd.Series(each, SEEDS) for name, each in values.items()}, names=["workload"])


def test_the_lowest_of_groups_that_all_must_hold_has_the_lowest_end():
    values = groups(steady=[0.1, 0.1, 0.1], wild=[0.0, 0.2, 0.7])
    assert stats.lowest(values, "workload", chosen_after=False)[0] == "wild"
    name, _, count = stats.lowest(values, "workload", chosen_after=True)
    assert (name, count) == ("steady", 2)
    only = values[["steady", "wild"]].xs("wild", level="workload", drop_level=False)
    assert stats.lowest(only, "workload", chosen_after=True)[1] == pytest.approx(stats.mean(only))
    assert stats.lowest(values.iloc[:1], "workload", chosen_after=True) is None


def test_an_estimate_chosen_afterwards_has_a_wider_interval():
    found = stats.mean([0.1, 0.2, 0.4])
    wider = found.widened(3)
    assert wider.low < found.low and wider.high > found.high and found.widened(1) == pytest.approx(found)


def test_pairs_have_equal_settings_and_seeds():
    rows = pd.DataFrame(
        {"system": [*"aaabbb"], "seed": [0, 1, 2, 0, 1, 3], "score": [0.8, 0.9, 0.1, 0.5, None, 0.0]}
    ).assign(workload="w")
    both = stats.pairs(rows, "a", "b", "score", ["workload", "seed"], "system")
    assert both.reset_index().to_dict("records") == [{"workload": "w", "seed": 0, "ours": 0.8, "theirs": 0.5}]
    assert stats.paired_difference(both) == (pytest.approx(0.3), None, None, 1)
    assert stats.pairs(rows, "a", "c", "score", ["workload", "seed"], "system").empty
    assert stats.paired_difference(both.iloc[:0]) is None


@pytest.mark.parametrize(
    ("low", "high", "less", "verdict"),
    [
        (0.1, 0.3, False, "better"),
        (-0.3, -0.1, False, "worse"),
        (-0.3, -0.1, True, "better"),
        (0.1, 0.3, True, "worse"),
        (-0.1, 0.3, False, "inconclusive"),
        (0.0, 0.3, False, "inconclusive"),
        (None, None, False, "inconclusive"),
    ],
)
def test_a_verdict_requires_an_interval_without_zero(low, high, less, verdict):
    assert (
        stats.verdict(Estimate(0.2 if high is None else (low + high) / 2, low, high, 3), less_is_better=less) == verdict
    )
