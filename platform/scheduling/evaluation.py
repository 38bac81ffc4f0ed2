"""The exact accuracy of a piecewise-constant allocation: mean over the applications of the integral over a window.

Each application answers with its accuracy times a multiplier that falls with its share. A model goes live when its
training is done, and not earlier; then the share of that training is split equally among the jobs that remain. A job
without a share at the start never runs and gets nothing later.
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
TIES = 1e-12  # jobs that end within this part of the time end together
TABLE = ((1.0, 1.0), (2.0, 0.95), (4.0, 0.85), (8.0, 0.70))  # frames per answered frame -> multiplier
LINES = [(x, y, (next_y - y) / (next_x - x), next_x) for (x, y), (next_x, next_y) in pairwise(TABLE)]


def multiplier(full_share: float, share: float) -> float:
    """Return the multiplier at a share: linear between the table's points, 1 below the first, 0 beyond the last."""
    if share >= full_share:
        return 1.0
    thinned = full_share / max(share, 1e-12)
    for x, y, slope, until in LINES:
        if thinned <= until:
            return slope * (thinned - x) + y
    return 0.0


@dataclass(frozen=True, eq=False)
class AnswerScale:
    """The multipliers of many shares at once."""

    full_share: Floats  # at which every frame is answered, per application

    def __call__(self, answer: Floats) -> Floats:
        rates, values = zip(*TABLE, strict=True)
        thinned = self.full_share / np.maximum(answer, 1e-12)
        found: Floats = np.interp(thinned, rates, values, right=0.0)
        return found


@dataclass(frozen=True)
class Trainings:
    """What each application has and would learn."""

    now: Sequence[float]
    then: Sequence[float]
    seconds: Sequence[float]  # alone on the whole machine
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
    return one.before, one.before if one.after is None else one.after, one.seconds


class Piece(NamedTuple):
    """The shares and accuracies between two instants."""

    start_s: float
    stop_s: float
    learn: Sequence[float]
    answer: Sequence[float]
    accuracy: Sequence[float]


def pieces(
    trainings: Trainings, learn: Sequence[float], answer: Sequence[float], window_s: float, freed: Freed = "all"
) -> Iterator[Piece]:
    """Yield the pieces of a plan; `learn` and `answer` are each application's shares at the start."""
    accuracy, start_s = trainings.now, 0.0
    left = {i: seconds for i, seconds in enumerate(trainings.seconds) if learn[i] > 0}
    takers = [i for i, share in enumerate(answer) if share > 0]
    while True:
        ends = {i: start_s + seconds / learn[i] for i, seconds in left.items()}
        stop_s = min(window_s, *ends.values()) if ends else window_s
        yield Piece(start_s, stop_s, learn, answer, accuracy)
        if stop_s >= window_s:
            return
        learn, answer, accuracy, given = [*learn], [*answer], [*accuracy], 0.0
        for i, end_s in ends.items():
            if end_s <= stop_s * (1 + TIES):
                given, learn[i], accuracy[i] = given + learn[i], 0.0, trainings.then[i]
                del left[i]
            else:
                left[i] -= learn[i] * (stop_s - start_s)
        each = given / max(1, len(takers) + (len(left) if freed == "all" else 0))
        for i in left if freed == "all" else ():
            learn[i] += each
        for i in takers:
            answer[i] += each
        start_s = stop_s


def evaluate(
    trainings: Trainings, learn: Sequence[float], answer: Sequence[float], window_s: float, freed: Freed = "all"
) -> float:
    """Return the mean accuracy of a plan over the window."""
    total = 0.0
    for start_s, stop_s, _, answers, accuracies in pieces(trainings, learn, answer, window_s, freed):
        right = sum(map(mul, accuracies, map(multiplier, trainings.full_share, answers)))
        total += (stop_s - start_s) * right
    return total / (window_s * max(1, len(trainings.now)))
