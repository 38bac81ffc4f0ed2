"""Exact mean accuracy of a piecewise-constant allocation over a window.

It is an integral over time, averaged over the applications. Each application's accuracy is multiplied by a factor that
falls with its inference share. A new model is used when its training ends, not earlier; then the share of that training
is split equally among the trainings that still run and all inferences, also those without a share. A training without
a share at the start never runs and receives nothing later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp

Floats = npt.NDArray[np.float64]
Freed = Literal["all", "inference"]
TIES = 1e-12  # trainings that end within this relative difference end together
TABLE = ((1.0, 1.0), (2.0, 0.95), (4.0, 0.85), (8.0, 0.70))  # frames per predicted frame -> factor
LINES = [(x, y, (next_y - y) / (next_x - x), next_x) for (x, y), (next_x, next_y) in pairwise(TABLE)]


def accuracy_factor(full_share: float, share: float) -> float:
    """Return the factor at a share: linear in `TABLE`, 1 before its first point, 0 after its last."""
    if share >= full_share:
        return 1.0
    subsampling = full_share / max(share, 1e-12)
    for x, y, slope, until in LINES:
        if subsampling <= until:
            return slope * (subsampling - x) + y
    return 0.0


@dataclass(frozen=True, eq=False)
class AccuracyFactor:
    """The factors of many shares at once."""

    full_share: Floats  # at which every frame is predicted, per application

    def __call__(self, inference: Floats) -> Floats:
        rates, values = zip(*TABLE, strict=True)
        subsampling = self.full_share / np.maximum(inference, 1e-12)
        factors: Floats = np.interp(subsampling, rates, values, right=0.0)
        return factors


@dataclass(frozen=True)
class Trainings:
    """The accuracy of each application before and after its training, and the cost of the training."""

    accuracy_before: Sequence[float]
    accuracy_after: Sequence[float]
    seconds: Sequence[float]  # on the whole processor
    full_share: Sequence[float]


def trainings_of(apps: Sequence[LearningApp], chosen: Sequence[int | None]) -> Trainings:
    """Return the trainings of the chosen candidates; an application without one keeps its accuracy."""
    rows = [_training(app, i) for app, i in zip(apps, chosen, strict=True)]
    now, then, seconds = zip(*rows, strict=True) if rows else ((), (), ())
    return Trainings(now, then, seconds, [app.full_share for app in apps])


def _training(app: LearningApp, i: int | None) -> tuple[float, float, float]:
    if i is None:
        return app.now, app.now, 0.0
    one = app.candidates[i]
    return one.accuracy_before, one.accuracy_before if one.accuracy_after is None else one.accuracy_after, one.seconds


class PlanInterval(NamedTuple):
    """The shares and accuracies between two instants."""

    start_s: float
    stop_s: float
    training: Sequence[float]
    inference: Sequence[float]
    accuracy: Sequence[float]


def plan_intervals(
    trainings: Trainings, training: Sequence[float], inference: Sequence[float], window_s: float, freed: Freed = "all"
) -> Iterator[PlanInterval]:
    """Yield the intervals of a plan; `training` and `inference` are the shares at the start."""
    accuracy, start_s = trainings.accuracy_before, 0.0
    left_s = {i: seconds for i, seconds in enumerate(trainings.seconds) if training[i] > 0}
    while True:
        ends_s = {i: start_s + seconds / training[i] for i, seconds in left_s.items()}
        stop_s = min(window_s, *ends_s.values()) if ends_s else window_s
        yield PlanInterval(start_s, stop_s, training, inference, accuracy)
        if stop_s >= window_s:
            return
        training, accuracy, freed_share = [*training], [*accuracy], 0.0
        for i, end_s in ends_s.items():
            if end_s <= stop_s * (1 + TIES):
                freed_share, training[i], accuracy[i] = freed_share + training[i], 0.0, trainings.accuracy_after[i]
                del left_s[i]
            else:
                left_s[i] -= training[i] * (stop_s - start_s)
        each = freed_share / (len(inference) + (len(left_s) if freed == "all" else 0))
        for i in left_s if freed == "all" else ():
            training[i] += each
        inference = [share + each for share in inference]
        start_s = stop_s


def evaluate(
    trainings: Trainings, training: Sequence[float], inference: Sequence[float], window_s: float, freed: Freed = "all"
) -> float:
    """Return the mean accuracy of a plan over the window."""
    total = 0.0
    for start_s, stop_s, _, shares, accuracies in plan_intervals(trainings, training, inference, window_s, freed):
        rate = sum(map(mul, accuracies, map(accuracy_factor, trainings.full_share, shares)))
        total += (stop_s - start_s) * rate
    return total / (window_s * max(1, len(trainings.accuracy_before)))
