"""Optimal division of an inference share among applications, on a grid of units.

Up to `EXACT` applications are divided exactly. For more, each accuracy is replaced by its concave hull, for which
allocating each unit to the largest gain is optimal; at most one application is then between two corners of its hull.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp, Skipped
from driftlab.platform.scheduling.evaluation import AccuracyFactor
from driftlab.platform.scheduling.programming import divide

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Full = tuple[float, Skipped]  # share at which every frame is predicted, and how skipped frames count
MIN_UNITS = 100  # of the processor
MIN_UNITS_PER_APP = 4
EXACT = 16  # maximum number of applications that are divided exactly
ROUNDING = 1e-9


def split_inference_share(apps: Sequence[LearningApp], share: float) -> Floats:
    """Divide a share among the inferences so that their total accuracy is highest."""
    if not apps:
        return np.zeros(0)
    now, full, units = _table_key(apps)
    available = int(share * units + ROUNDING)
    if len(apps) <= EXACT:
        allocated, _ = divide(-_values(now, full, units)[:, : available + 1], np.add)
    else:
        of_app, _ = _steepest(now, full, units)
        allocated = 1 + np.bincount(of_app[: max(0, available - len(apps))], minlength=len(apps))
    shares: Floats = allocated * share / max(1, allocated.sum())
    return shares


def final_factors(apps: Sequence[LearningApp]) -> Floats:
    """Return the factors on accuracies while nothing trains: below 1 on an overloaded processor."""
    if sum(app.full_share for app in apps) <= 1:
        return np.ones(len(apps))
    shares, (_, full, units) = split_inference_share(apps, 1.0), _table_key(apps)
    pairs = zip(full, shares, strict=True)
    return np.array([_factors(*one, units)[int(share * units + ROUNDING)] for one, share in pairs])


def lost_accuracy(apps: Sequence[LearningApp]) -> Floats:
    """Return the total accuracy lost to training with each number of units, compared with inference only."""
    now, full, units = _table_key(apps)
    values = _values(now, full, units)
    if len(apps) <= EXACT:
        best = _joined(values)
    else:
        _, gains = _steepest(now, full, units)
        best = np.full(units + 1, -np.inf)
        best[len(apps) :] = values[:, 1].sum() + np.append(0.0, gains.cumsum())[: units + 1 - len(apps)]
    lost: Floats = (best[-1] - best)[::-1]
    return lost


def best_totals(apps: Sequence[LearningApp], now: tuple[float, ...]) -> Floats:
    """Return the highest total accuracy at every number of units, for given accuracies."""
    _, full, units = _table_key(apps)
    return _joined(_values(now, full, units))


def _table_key(apps: Sequence[LearningApp]) -> tuple[tuple[float, ...], tuple[Full, ...], int]:
    """Return the accuracies, the shares at which every frame is predicted, and the number of units."""
    now, full = tuple(app.now for app in apps), tuple((app.full_share, app.skipped) for app in apps)
    return now, full, max(MIN_UNITS, MIN_UNITS_PER_APP * len(apps))


def _values(now: tuple[float, ...], full: tuple[Full, ...], units: int) -> Floats:
    """Return the accuracy of every application at every number of units; -inf at 0 units."""
    values: Floats = np.array(now)[:, None] * np.array([_factors(*one, units) for one in full])
    values[:, 0] = -np.inf
    return values


def _joined(values: Floats) -> Floats:
    """Return the highest total at every number of units, by dynamic programming."""
    best, rest = np.zeros(values.shape[1]), np.subtract.outer(np.arange(values.shape[1]), np.arange(values.shape[1]))
    for of_app in values:
        best = np.where(rest >= 0, best[rest] + of_app, -np.inf).max(axis=1)
    return best


@lru_cache(maxsize=8)
def _steepest(now: tuple[float, ...], full: tuple[Full, ...], units: int) -> tuple[Ints, Floats]:
    """Return the units beyond each application's first by their gain on its hull: applications and gains."""
    gains = np.array(now)[:, None] * np.array([_hull_gains(*one, units) for one in full])
    order = (-gains).argsort(axis=None, kind="stable")  # units of one application stay in order: its gains fall
    return order // gains.shape[1], gains.ravel()[order]


@lru_cache(maxsize=1024)
def _factors(full_share: float, skipped: Skipped, units: int) -> Floats:
    """Return the factor on an application's accuracy at every number of units.

    A busy network skips whole frames, which count as wrong (`wrong`) or are scored with the last prediction (`stale`).
    """
    shares = np.arange(units + 1) / units
    if skipped == "stale":
        stale: Floats = AccuracyFactor(np.array(full_share))(shares)
        return stale
    predicted: Floats = 1 / np.ceil(full_share / np.maximum(shares, ROUNDING) - ROUNDING)
    return predicted


@lru_cache(maxsize=1024)
def _hull_gains(full_share: float, skipped: Skipped, units: int) -> Floats:
    """Return the gain of each unit after the first, on the concave hull of the factor."""
    values = _factors(full_share, skipped, units)[1:].tolist()
    corners = [0]
    for place in range(1, units):
        while len(corners) > 1 and _above(values, corners[-2], place, corners[-1]):
            corners.pop()
        corners.append(place)
    gains: Floats = np.diff(np.interp(np.arange(units), corners, [values[one] for one in corners]))
    return gains


def _above(values: Sequence[float], first: int, last: int, middle: int) -> bool:
    """Return whether the line from the first to the last point runs above the middle one, or through it."""
    part = (middle - first) / (last - first)
    return values[middle] <= values[first] + part * (values[last] - values[first])
