"""The accuracy of answers on a share of the machine, and its best division among applications, on a grid of units.

A few applications are divided exactly. Of many, each one's accuracy is replaced by its concave hull, for which giving
every unit to the largest gain is best; at most one application then stands between two corners of its hull.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.evaluation import AnswerScale
from driftlab.platform.scheduling.programming import divide

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Skipped = Literal["lost", "held"]
UNITS = 100  # of the machine, at least
PER_APP = 4  # units, at least
EXACT = 16  # applications that are divided exactly
ROUNDING = 1e-9


def split_answers(apps: Sequence[LearningApp], share: float, skipped: Skipped = "held") -> Floats:
    """Divide a share among the answers so that their total accuracy is highest."""
    if not apps:
        return np.zeros(0)
    now, full, units = _table_key(apps)
    given = int(share * units + ROUNDING)
    if len(apps) <= EXACT:
        taken, _ = divide(-_values(now, full, units, skipped)[:, : given + 1], np.add)
    else:
        of_app, _ = _steepest(now, full, units, skipped)
        taken = 1 + np.bincount(of_app[: max(0, given - len(apps))], minlength=len(apps))
    found: Floats = taken * share / max(1, taken.sum())
    return found


def lost_accuracy(apps: Sequence[LearningApp], skipped: Skipped = "held") -> Floats:
    """Return the total accuracy lost where learning has each number of units, against answering alone."""
    now, full, units = _table_key(apps)
    values = _values(now, full, units, skipped)
    if len(apps) <= EXACT:
        best = _joined(values)
    else:
        _, gains = _steepest(now, full, units, skipped)
        best = np.full(units + 1, -np.inf)
        best[len(apps) :] = values[:, 1].sum() + np.append(0.0, gains.cumsum())[: units + 1 - len(apps)]
    found: Floats = (best[-1] - best)[::-1]
    return found


def _table_key(apps: Sequence[LearningApp]) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Return the accuracies, the shares at which every frame is answered, and the units of the machine."""
    now, full = tuple(app.now for app in apps), tuple(app.full_share for app in apps)
    return now, full, max(UNITS, PER_APP * len(apps))


def _values(now: tuple[float, ...], full: tuple[float, ...], units: int, skipped: Skipped) -> Floats:
    """Return the accuracy of every application's answers on every number of units; each has at least one."""
    found: Floats = np.array(now)[:, None] * np.array([_scale(one, units, skipped) for one in full])
    found[:, 0] = -np.inf
    return found


def _joined(values: Floats) -> Floats:
    """Return the highest total on every number of units, by dynamic programming."""
    best, rest = np.zeros(values.shape[1]), np.subtract.outer(np.arange(values.shape[1]), np.arange(values.shape[1]))
    for of_app in values:
        best = np.where(rest >= 0, best[rest] + of_app, -np.inf).max(axis=1)
    return best


@lru_cache(maxsize=8)
def _steepest(now: tuple[float, ...], full: tuple[float, ...], units: int, skipped: Skipped) -> tuple[Ints, Floats]:
    """List the units beyond the first of each application by their gain on its hull: whose they are, and the gain."""
    gains = np.array(now)[:, None] * np.array([_hull_gains(one, units, skipped) for one in full])
    order = (-gains).argsort(axis=None, kind="stable")  # units of one application stay in order: its gains fall
    return order // gains.shape[1], gains.ravel()[order]


@lru_cache(maxsize=1024)
def _scale(full_share: float, units: int, skipped: Skipped) -> Floats:
    """Return the multiplier of an application's accuracy on every number of units.

    A network that is busy skips whole frames. Either they are lost, or the last answer stands for them.
    """
    shares = np.arange(units + 1) / units
    if skipped == "held":
        held: Floats = AnswerScale(np.array(full_share))(shares)
        return held
    found: Floats = 1 / np.ceil(full_share / np.maximum(shares, ROUNDING) - ROUNDING)
    return found


@lru_cache(maxsize=1024)
def _hull_gains(full_share: float, units: int, skipped: Skipped) -> Floats:
    """Return the gain of each unit after the first on the least concave function above the multiplier."""
    values = _scale(full_share, units, skipped)[1:].tolist()
    corners = [0]
    for place in range(1, units):
        while len(corners) > 1 and _above(values, corners[-2], place, corners[-1]):
            corners.pop()
        corners.append(place)
    found: Floats = np.diff(np.interp(np.arange(units), corners, [values[one] for one in corners]))
    return found


def _above(values: Sequence[float], first: int, last: int, middle: int) -> bool:
    """Tell whether the line from the first to the last place runs above the middle one."""
    part = (middle - first) / (last - first)
    return values[middle] <= values[first] + part * (values[last] - values[first])
