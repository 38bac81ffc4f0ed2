"""Which trials beat which: ranks under constraints, the room around a trial, and the volume that a front covers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from driftlab.platform.tune.study import SearchProblem, Trial

Floats = npt.NDArray[np.float64]


def ranks(trials: Sequence[Trial], problem: SearchProblem) -> list[int]:
    """Rank trials: no trial beats one of rank 0. Those that keep the bounds come first, the others by violation."""
    violations = np.array([trial.violation(problem) for trial in trials])
    losses = np.array([trial.losses(problem) for trial in trials]).reshape(len(trials), -1)
    found = np.zeros(len(trials), dtype=np.int64)
    kept = np.flatnonzero(violations == 0)
    found[kept] = _fronts(losses[kept])
    after = int(found[kept].max()) + 1 if len(kept) else 0
    missed = np.flatnonzero(violations > 0)
    found[missed] = after + np.unique(violations[missed], return_inverse=True)[1]
    return [int(rank) for rank in found]


def _fronts(losses: Floats) -> npt.NDArray[np.int64]:
    """Number the Pareto fronts of points, lower being better in each coordinate."""
    found, left, front = np.zeros(len(losses), dtype=np.int64), np.arange(len(losses)), 0
    while len(left):
        points = losses[left]
        no_worse = (points[:, None] <= points[None]).all(axis=2)
        beaten = (no_worse & ~no_worse.T).any(axis=0)
        found[left[~beaten]] = front
        left, front = left[beaten], front + 1
    return found


def room(losses: Floats) -> Floats:
    """Measure how far the neighbours of each point of a front are, summed over coordinates; the ends have no limit."""
    around = np.zeros(len(losses))
    for column in losses.T:
        order = column.argsort(kind="stable")
        extent = column[order[-1]] - column[order[0]]
        around[order[[0, -1]]] = np.inf
        if extent > 0:
            around[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / extent
    return around


def hypervolume(losses: Floats, reference: Sequence[float]) -> float:
    """Measure the volume between points and a reference that is worse than all of them, lower being better."""
    inside = losses[(losses < np.asarray(reference)).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(reference[0] - inside.min())
    total, order = 0.0, inside[:, -1].argsort(kind="stable")
    heights = [*inside[order[1:], -1].tolist(), reference[-1]]
    for count, (point, height) in enumerate(zip(order, heights, strict=True), 1):
        depth = height - inside[point, -1]
        if depth > 0:
            total += depth * hypervolume(inside[order[:count], :-1], reference[:-1])
    return total
