"""Load forecasts from past readings: persistence, mean, and an autoregressive model as in AdaScale.

Differs from the paper: it gives neither order nor estimator. Here an autoregressive model of order 1 to 5 is fitted to
the newest samples by ridge regression with a free intercept, its order chosen by the AIC on common targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

Floats = npt.NDArray[np.float64]
ForecastKind = Literal["persistence", "mean", "ar"]
KINDS: tuple[ForecastKind, ...] = ("persistence", "mean", "ar")
MAX_ORDER = 5
DEFAULT_ORDER, FEW_SAMPLES = 3, 30  # the order with fewer samples than that
MIN_VARIANCE = 1e-30  # of the residuals of a series that a model fits exactly


@dataclass(frozen=True)
class ArModel:
    """An autoregressive model with an intercept."""

    intercept: float
    coefficients: tuple[float, ...]  # newest sample first

    def predict(self, series: Sequence[float], horizon: int) -> tuple[float, ...]:
        """Predict the next samples; each is clipped to [0, 1] before the one after it is predicted."""
        past = [*reversed(series[-len(self.coefficients) :])]
        predictions = []
        for _ in range(horizon):
            value = self.intercept + sum(c * before for c, before in zip(self.coefficients, past, strict=True))
            predictions.append(min(1.0, max(0.0, value)))
            past = [predictions[-1], *past[:-1]]
        return tuple(predictions)


@dataclass(frozen=True)
class ForecastState:
    """A fitted model, and the number of forecasts since the fit."""

    model: ArModel | None = None
    age: int = 0


@dataclass(frozen=True)
class Forecaster:
    """A forecasting method; `predict` is pure, and called once per sample."""

    kind: ForecastKind = "persistence"
    horizon: Annotated[int, Ge(1)] = 3
    window: Annotated[int, Ge(1)] = 60  # number of newest samples that a forecast uses
    refit: Annotated[int, Ge(1)] = 5  # number of samples between two fits
    ridge: Annotated[float, Ge(0)] = 1e-3

    def predict(
        self, series: Sequence[float], state: ForecastState | None = None
    ) -> tuple[tuple[float, ...], ForecastState]:
        """Forecast the next samples of a non-empty series; `state` is the second result of the last call."""
        newest, state = list(series[-self.window :]), state or ForecastState()
        if self.kind == "mean":
            return (min(1.0, max(0.0, sum(newest) / len(newest))),) * self.horizon, state
        model, age = state.model, state.age + 1
        if self.kind == "ar" and (model is None or age >= self.refit):
            model, age = fit_ar(newest, self.ridge), 0
        if model is None or len(newest) < len(model.coefficients):
            return (min(1.0, max(0.0, newest[-1])),) * self.horizon, ForecastState(None, age)
        return model.predict(newest, self.horizon), ForecastState(model, age)


def fit_ar(series: Sequence[float], ridge: float = 1e-3) -> ArModel | None:
    """Fit a model; None with too few samples, or without a finite solution."""
    values = np.asarray(series, dtype=np.float64)
    order = DEFAULT_ORDER if len(values) < FEW_SAMPLES else choose_order(values, ridge)
    if len(values) < 3 * order + 2 or not np.isfinite(values).all():
        return None
    model, _ = _fit(values, order, order, ridge)
    return model if np.isfinite([model.intercept, *model.coefficients]).all() else None


def choose_order(values: Floats, ridge: float = 1e-3) -> int:
    """Return the order of the lowest AIC on common targets; of equals, the lower order."""
    count = len(values) - MAX_ORDER

    def criterion(order: int) -> float:
        _, squares = _fit(values, order, MAX_ORDER, ridge)
        return count * math.log(max(squares / count, MIN_VARIANCE)) + 2 * (order + 1)

    return min(range(1, MAX_ORDER + 1), key=lambda order: (criterion(order), order))


def _fit(values: Floats, order: int, first: int, ridge: float) -> tuple[ArModel, float]:
    """Return the model and the sum of squared residuals, on the targets from index `first` on.

    Targets and past samples are centred each by their own mean, which gives the intercept without a penalty.
    """
    past = np.stack([values[first - lag : len(values) - lag] for lag in range(1, order + 1)], axis=1)
    targets, middle, mean = values[first:], past.mean(axis=0), values[first:].mean()
    past = past - middle
    coefficients = np.linalg.solve(past.T @ past + (ridge or 1e-12) * np.eye(order), past.T @ (targets - mean))
    residuals = targets - mean - past @ coefficients
    return ArModel(float(mean - middle @ coefficients), tuple(coefficients.tolist())), float((residuals**2).sum())


@dataclass(frozen=True)
class ForecastScore:
    """The errors of a forecaster on a series, by horizon."""

    errors: tuple[float, ...]  # mean absolute errors
    skill: tuple[float, ...]  # 1 - error / error of persistence; 0 if persistence has no error


def forecast_errors(series: Sequence[float], forecaster: Forecaster) -> Floats:
    """Return the absolute error of every forecast (row) at every horizon (column) that the series covers."""
    state, differences = None, []
    for count in range(1, len(series) - forecaster.horizon + 1):
        predicted, state = forecaster.predict(series[max(0, count - forecaster.window) : count], state)
        differences.append(np.subtract(predicted, series[count : count + forecaster.horizon]))
    errors: Floats = np.abs(np.array(differences)).reshape(-1, forecaster.horizon)
    return errors


def score_forecasts(series: Sequence[Sequence[float]], horizon: int = 3) -> Mapping[ForecastKind, ForecastScore]:
    """Score every kind of forecast on several series of the same load."""
    errors = {
        kind: np.concatenate([forecast_errors(one, Forecaster(kind, horizon)) for one in series]).mean(axis=0)
        for kind in KINDS
    }
    baseline = errors["persistence"]
    positive = np.where(baseline > 0, baseline, 1)
    skill = {kind: np.where(baseline > 0, 1 - own / positive, 0) for kind, own in errors.items()}
    return {kind: ForecastScore(tuple(errors[kind].tolist()), tuple(skill[kind].tolist())) for kind in KINDS}
