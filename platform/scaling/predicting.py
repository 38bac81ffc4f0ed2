"""Predictors of the latency of networks under load.

`law` is the model of the papers: a network loses the share of the CPU that other programs have, in proportion to the
clock, and all networks lose alike. `learned` corrects it by the measurements of this session: the logarithm of the
measured latency over that of `law` is a linear function of the loads of CPU and memory, with a slope for all networks
and one for each operator, fitted by ridge regression. `world` is the law by which the simulated networks slow, a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import LoadReading, TimedInference, Variant
from driftlab.platform.world.load import slowdown, speed_of_network

Predictor = Literal["law", "learned", "world"]
SHARED_RIDGE, OPERATOR_RIDGE = 0.02, 0.2  # penalties on the slopes of all networks, and of single operators
Floats = npt.NDArray[np.float64]


def predicted_factors(
    predictor: Predictor, networks: Sequence[Variant], reading: LoadReading, timed: Sequence[TimedInference]
) -> Floats:
    """Return the latency of networks under a load over that on the idle processor."""
    if predictor == "world":
        return np.array([1 / max(speed_of_network(reading, one.sensitivity), 1e-9) for one in networks])
    of_law = np.full(len(networks), _of_law(reading))
    if predictor == "law" or not timed:
        return of_law
    names = sorted({operator for one in timed for operator in _operators(one.network)})
    rows = np.stack([_features(one.network, one.reading, names) for one in timed])
    logs = np.log([one.taken_s / one.idle_s / _of_law(one.reading) for one in timed])
    ridge = np.array([SHARED_RIDGE] * 2 + [OPERATOR_RIDGE] * (rows.shape[1] - 2))
    slopes = np.linalg.solve(rows.T @ rows + np.diag(ridge), rows.T @ logs)
    corrections: Floats = np.exp(np.stack([_features(one.name, reading, names) for one in networks]) @ slopes)
    return of_law * corrections


def with_predictions(
    predictor: Predictor, networks: Sequence[Variant], reading: LoadReading, timed: Sequence[TimedInference]
) -> Sequence[Variant]:
    """Return networks with latencies from which every rule, by the law alone, derives the predicted ones."""
    factors = predicted_factors(predictor, networks, reading, timed) / _of_law(reading)
    return [replace(one, latency_s=float(one.latency_s * by)) for one, by in zip(networks, factors, strict=True)]


def _of_law(reading: LoadReading) -> float:
    return 1 / max(slowdown([reading]), 1e-9)


def _operators(network: str) -> list[str]:
    """Return the operator of each stage of a path; another network is one stage."""
    return network.split(".")


def _features(network: str, reading: LoadReading, names: Sequence[str]) -> Floats:
    """Return the loads, and the loads times the share of stages with each operator."""
    counts, loads = Counter(stages := _operators(network)), np.array([reading.cpu, reading.memory])
    shares = np.array([counts[name] / len(stages) for name in names])
    return np.concatenate([loads, np.outer(shares, loads).ravel()])
