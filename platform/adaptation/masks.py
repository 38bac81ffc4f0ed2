"""Masks: the coordinates of the weight vector that a phase may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def budget(fraction: float, size: int) -> int:
    """Return the number of coordinates in a fraction: at least one, at most all."""
    return min(size, max(1, round(fraction * size)))


def largest(values: npt.NDArray[np.floating[Any]], count: int) -> Mask:
    """Choose the largest by absolute value; among equal ones the lower index, as a stable sort would."""
    magnitude = np.abs(values)
    threshold = np.partition(magnitude, len(magnitude) - count)[len(magnitude) - count]
    mask: Mask = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    mask[ties[: count - int(mask.sum())]] = True
    return mask


def largest_blocks(values: npt.NDArray[np.floating[Any]], fraction: float, block: int) -> Mask:
    """Choose blocks of consecutive coordinates: those with the largest sum of absolute values."""
    sums = np.add.reduceat(np.abs(values), np.arange(0, len(values), block))
    return np.repeat(largest(sums, budget(fraction, len(sums))), block)[: len(values)]


def uniform_blocks(size: int, fraction: float, block: int, rng: np.random.Generator) -> Mask:
    """Choose blocks of consecutive coordinates uniformly at random."""
    blocks = -(-size // block)
    return np.repeat(uniform(blocks, budget(fraction, blocks), rng), block)[:size]


def uniform(size: int, count: int, rng: np.random.Generator) -> Mask:
    """Choose exactly `count` coordinates uniformly at random."""
    mask = np.zeros(size, dtype=bool)
    mask[rng.choice(size, count, replace=False, shuffle=False)] = True
    return mask


def ends(order: npt.NDArray[np.intp], count: int, where: str) -> Mask:
    """Choose from the beginning of an order, from its end, or half from each."""
    back = {"first": 0, "last": count, "first_last": count // 2}[where]
    mask = np.zeros(len(order), dtype=bool)
    mask[order[: count - back]] = True
    mask[order[len(order) - back :]] = True
    return mask


def above_percentile(values: npt.NDArray[np.floating[Any]], fraction: float) -> Mask:
    """Choose the absolute values strictly above their (1 - fraction) percentile; the number varies."""
    magnitude = np.abs(values)
    return np.asarray(magnitude > np.quantile(magnitude, max(0.0, 1 - fraction)))
