"""Load forecasts: recovered models, bounds, and skill over persistence with and without level shifts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.world.forecasting import (
    KINDS,
    Forecaster,
    ForecastState,
    choose_order,
    fit_ar,
    forecast_errors,
    score_forecasts,
)
from driftlab.platform.world.load import LOADS, draw, from_mapping

UNIT = st.floats(0, 1)


def autoregressive(count: int, *coefficients: float, mean: float = 0.5, sigma: float = 0.02, seed: int = 0) -> list:
    rng, found = rng_for(seed, "series"), [0.0] * len(coefficients)
    for innovation in rng.normal(0, sigma, count + 200):
        found.append(sum(c * found[-k] for k, c in enumerate(coefficients, 1)) + innovation)
    return (mean + np.array(found[-count:])).tolist()


def test_a_model_of_order_two_is_recovered():
    series = autoregressive(2000, 1.2, -0.5)
    assert choose_order(np.array(series)) == 2
    model = fit_ar(series)
    assert model is not None
    assert model.coefficients == pytest.approx((1.2, -0.5), abs=0.05)
    assert model.intercept / (1 - sum(model.coefficients)) == pytest.approx(0.5, abs=0.01)  # the mean


def test_the_fit_is_ridge_regression_with_a_free_intercept():
    series = autoregressive(60, 0.6, seed=3)
    order = choose_order(np.array(series))
    past = np.array([[1.0, *(series[t - lag] for lag in range(1, order + 1))] for t in range(order, 60)])
    penalty = math.sqrt(1e-3) * np.eye(order + 1)[1:]  # of the coefficients only
    targets = np.concatenate([series[order:], np.zeros(order)])
    intercept, *expected = np.linalg.lstsq(np.vstack([past, penalty]), targets, rcond=None)[0]
    assert fit_ar(series).coefficients == pytest.approx(tuple(expected), abs=1e-9)
    assert fit_ar(series).intercept == pytest.approx(intercept, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_constant_series_is_predicted_exactly(kind: str, level: float):
    assert forecast_errors([level] * 80, Forecaster(kind)).max() < 1e-12


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(series=st.lists(UNIT, min_size=1, max_size=70), kind=st.sampled_from(KINDS))
def test_forecasts_are_within_the_bounds_of_a_load(series: list[float], kind: str):
    state: ForecastState | None = None
    for count in range(1, len(series) + 1):
        predicted, state = Forecaster(kind, horizon=4).predict(series[:count], state)
        assert len(predicted) == 4
        assert all(0 <= value <= 1 for value in predicted)


def test_few_samples_or_nan_fall_back_to_persistence():
    series = autoregressive(40, 0.9, sigma=0.05)
    for count in (1, 5, 10):
        assert fit_ar(series[:count]) is None
        assert Forecaster("ar").predict(series[:count])[0] == (series[count - 1],) * 3
    assert len(fit_ar(series[:11]).coefficients) == 3
    assert fit_ar([*series[:-3], math.nan, *series[-2:]]) is None


def test_model_is_refitted_every_fifth_sample():
    series, state, models = autoregressive(60, 0.8), None, []
    for count in range(30, 60):
        _, state = Forecaster("ar").predict(series[:count], state)
        models.append(state.model)
    changes = [k for k in range(1, len(models)) if models[k] != models[k - 1]]
    assert changes == [5, 10, 15, 20, 25]


@pytest.mark.slow
def test_forecasts_beat_persistence_on_one_level_only():
    """Horizons of 1, 2 and 3 samples: the model predicts the noise of a level, but not its changes."""
    steady = from_mapping({"activities": [{"name": "one", "cpu": (0.5, 0.5)}]})
    for profile, better in ((steady, True), (LOADS["user"], False), (LOADS["random"], False)):
        series = [[step.cpu for step in draw(profile, 120.0, rng_for(k, "load", 0)).steps] for k in range(5)]
        scores = score_forecasts(series)
        assert scores["persistence"].skill == (0, 0, 0)
        assert [skill > 0 for skill in scores["ar"].skill] == [better] * 3
        assert scores["mean"].skill[0] < 0
