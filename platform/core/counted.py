"""NumPy functions that charge a member for their operations; torch operators are counted without them.

Results equal those of NumPy. `count` charges other work of NumPy or Python.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.work import count

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def matmul(left: npt.ArrayLike, right: npt.ArrayLike) -> npt.NDArray[Any]:
    """Multiply two arrays; one operation for each multiplication."""
    made = np.asarray(np.matmul(left, right))
    count(made.size * np.shape(left)[-1])
    return made


def sort(values: npt.ArrayLike, axis: int = -1) -> npt.NDArray[Any]:
    """Sort along an axis; n log n operations."""
    count(_sorting(values))
    return np.sort(values, axis=axis)


def argsort(values: npt.ArrayLike, axis: int = -1) -> Indices:
    """Return the order that sorts along an axis, stable among equals; n log n operations."""
    count(_sorting(values))
    return np.argsort(values, axis=axis, kind="stable")


def distances(points: npt.ArrayLike, others: npt.ArrayLike) -> Numbers:
    """Return the Euclidean distances of the rows of two matrices; one operation for each difference."""
    rows, columns = np.asarray(points, np.float64), np.asarray(others, np.float64)
    count(len(rows) * columns.size)
    found: Numbers = np.sqrt(((rows[:, None] - columns[None]) ** 2).sum(axis=-1))
    return found


def nearest(points: npt.ArrayLike, others: npt.ArrayLike, k: int = 1) -> Indices:
    """Return for each row of `points` the indices of the k nearest rows of `others`, the nearest first."""
    return argsort(distances(points, others), axis=1)[:, :k]


def solve(matrix: npt.ArrayLike, right: npt.ArrayLike) -> Numbers:
    """Solve a linear system, or a stack of them; n^3 operations for each."""
    system = np.asarray(matrix, np.float64)
    count(system.size * system.shape[-1])
    found: Numbers = np.linalg.solve(system, np.asarray(right, np.float64)).astype(np.float64, copy=False)
    return found


def _sorting(values: npt.ArrayLike) -> int:
    numbers = np.size(values)
    return round(numbers * math.log2(numbers + 1))
