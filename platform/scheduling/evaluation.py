"""The exact accuracy of piecewise-constant allocations: mean over the applications of the integral over a window.

Each application answers with its accuracy times a multiplier that falls with its share. A model goes live when its
training is done, and not earlier; then the share of that training is split equally among the jobs that remain. A job
without a share at the start never runs and gets nothing later. Many plans are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp

Floats = npt.NDArray[np.float64]
Freed = Literal["all", "inference"]
TIES = 1e-12  # jobs that end within this part of the time end together
TABLE = ((1.0, 1.0), (2.0, 0.95), (4.0, 0.85), (8.0, 0.70))  # frames per answered frame -> multiplier


@dataclass(frozen=True, eq=False)
class AnswerScale:
    """The multiplier at a share: linear between the points, constant below the first, 0 beyond the last."""

    full_share: Floats  # at which every frame is answered, per application
    table: Sequence[tuple[float, float]] = TABLE

    def __call__(self, answer: Floats) -> Floats:
        rates, values = zip(*self.table, strict=True)
        thinned = self.full_share / np.maximum(answer, 1e-12)
        found: Floats = np.interp(thinned, rates, values, right=0.0)
        return found


@dataclass(frozen=True, eq=False)
class Trainings:
    """What each application has and would learn: [plans, apps], or whatever broadcasts to that."""

    now: Floats
    then: Floats
    seconds: Floats  # alone on the whole machine


def trainings_of(apps: Sequence[LearningApp], chosen: Sequence[int | None]) -> Trainings:
    """Return the trainings of the chosen candidates, for one plan; an application without one keeps its accuracy."""
    rows = [_training(app, i) for app, i in zip(apps, chosen, strict=True)]
    now, then, seconds = np.array(rows, np.float64).reshape(-1, 3).T
    return Trainings(now, then, seconds)


def _training(app: LearningApp, i: int | None) -> tuple[float, float, float]:
    if i is None:
        return app.now, app.now, 0.0
    one = app.candidates[i]
    return one.before, one.before if one.after is None else one.after, one.seconds


@dataclass(frozen=True, eq=False)
class Piece:
    """The shares and accuracies between two instants."""

    start_s: Floats
    stop_s: Floats
    learn: Floats
    answer: Floats
    accuracy: Floats


def pieces(
    trainings: Trainings, learn: Floats, answer: Floats, window_s: float, freed: Freed = "all"
) -> Iterator[Piece]:
    """Yield the pieces of every plan; `learn` and `answer` are shares at the start, [plans, apps]."""
    shape = learn.shape
    accuracy, then, left = (np.broadcast_to(one, shape) for one in (trainings.now, trainings.then, trainings.seconds))
    lives, answers, start_s = learn > 0, answer > 0, np.zeros(len(learn))
    for _ in range(shape[1] + 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(lives, start_s[:, None] + left / learn, np.inf)
        stop_s = np.minimum(ends.min(axis=1), window_s)
        yield Piece(start_s, stop_s, learn, answer, accuracy)
        if (stop_s >= window_s).all():
            return
        ended = lives & (ends <= stop_s[:, None] * (1 + TIES)) & (stop_s < window_s)[:, None]
        left = left - learn * (stop_s - start_s)[:, None]
        given = np.where(ended, learn, 0.0).sum(axis=1)
        lives = lives & ~ended
        takers = answers.sum(axis=1) + (lives.sum(axis=1) if freed == "all" else 0)
        each = (given / np.maximum(takers, 1))[:, None]
        learn = np.where(lives, learn + (each if freed == "all" else 0.0), 0.0)
        answer = np.where(answers, answer + each, 0.0)
        accuracy, start_s = np.where(ended, then, accuracy), stop_s


def evaluate(
    trainings: Trainings, learn: Floats, answer: Floats, window_s: float, scale: AnswerScale, freed: Freed = "all"
) -> Floats:
    """Return the mean accuracy of every plan over the window."""
    total: Floats = np.zeros(len(learn))
    for piece in pieces(trainings, learn, answer, window_s, freed):
        total += (piece.stop_s - piece.start_s) * (piece.accuracy * scale(piece.answer)).sum(axis=1)
    mean: Floats = total / (window_s * max(1, learn.shape[1]))
    return mean
