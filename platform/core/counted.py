"""NumPy functions for members, which charge their operations; operators of torch are counted without them.

They return exactly what the functions of NumPy return. Other work of NumPy or Python is charged by `count`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftlab.platform.core.work import count


def matmul(left: ArrayLike, right: ArrayLike) -> NDArray:
    """Multiply two arrays; one operation for each multiplication."""
    made = np.matmul(left, right)
    count(made.size * np.shape(left)[-1])
    return made


def sort(values: ArrayLike, axis: int = -1) -> NDArray:
    """Sort along an axis; n log n operations."""
    count(_sorting(values))
    return np.sort(values, axis=axis)


def argsort(values: ArrayLike, axis: int = -1) -> NDArray:
    """Return the order that sorts along an axis, stable among equals; n log n operations."""
    count(_sorting(values))
    return np.argsort(values, axis=axis, kind="stable")


def distances(points: ArrayLike, others: ArrayLike) -> NDArray:
    """Return the Euclidean distances of the rows of two matrices; one operation for each difference."""
    points, others = np.asarray(points), np.asarray(others)
    count(len(points) * others.size)
    return np.sqrt(((points[:, None] - others[None]) ** 2).sum(axis=-1))


def nearest(points: ArrayLike, others: ArrayLike, k: int = 1) -> NDArray[np.intp]:
    """Return for each row of `points` the indices of the k nearest rows of `others`, the nearest first."""
    return argsort(distances(points, others), axis=1)[:, :k]


def solve(matrix: ArrayLike, right: ArrayLike) -> NDArray:
    """Solve a linear system, or a stack of them; n^3 operations for each."""
    matrix = np.asarray(matrix)
    count(matrix.size * matrix.shape[-1])
    return np.linalg.solve(matrix, right)


def _sorting(values: ArrayLike) -> int:
    numbers = np.size(values)
    return round(numbers * math.log2(numbers + 1))
