"""Utility of predictions under time pressure: jobs that are skipped, waited for, or adapted on.

A job is a batch of frames: inference, then training, which blocks the next job. Job k arrives at k times the period.
Pure functions of arrays; `timing.py` makes jobs of the tables of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
CLOSE = 1e-9  # of a period: times that differ by less are the same
JITTER = 1e-6  # of a plain inference: a ratio that is so little above a whole number is that number


@dataclass(frozen=True)
class Jobs:
    """Jobs of one stream: accuracy, and isolated times of inference and training."""

    accuracy: Floats
    inference_duration_s: Floats
    training_s: Floats
    plain_s: float  # time of one job without training

    @property
    def work_s(self) -> Floats:
        """Return the time that each job occupies the processor."""
        return self.inference_duration_s + self.training_s


@dataclass(frozen=True)
class Utility:
    """Utility of the jobs of a stream, with its components."""

    value: float
    availability: float = 1.0  # share of the jobs that are served
    served: float = math.nan  # mean accuracy of these
    timeliness: float = 1.0  # mean weight of a prediction by its waiting time
    alignment: float = 0.0  # covariance of accuracy and timeliness
    adapted: float = 1.0  # share of the jobs that are trained on


def served_jobs(
    work_s: Sequence[float] | Floats,
    period_s: float,
    *,
    tie: Literal["new", "waiting"] = "new",
    drain: bool = False,
    queue: bool = True,
) -> Rows:
    """Return the numbers of the jobs that a processor serves with a queue for one job.

    A newer job replaces the queued one. A job that arrives exactly when the processor becomes free is served, unless
    `tie` prefers the queued one. With
    `drain` the job queued at the end is served. Without a queue a job that arrives at a busy processor is lost.
    """
    count, found, job, free_s = len(work_s), list[int](), 0, 0.0
    while job < count:
        found.append(job)
        free_s = max(free_s, job * period_s) + float(work_s[job])
        arrived = free_s / period_s
        if not queue or tie == "waiting":
            later = math.ceil(arrived - CLOSE) - (1 if queue else 0)
        else:
            later = math.floor(arrived + CLOSE)
        job = max(job + 1, later)
    if drain and queue and found and found[-1] < count - 1:
        found.append(count - 1)
    return np.array(found, np.int64)


def discrete(jobs: Jobs, period_s: float, chance: float = 0.0) -> Utility:
    """Return the mean accuracy of jobs that arrive at a period; a missed job has the chance accuracy."""
    rows = served_jobs(jobs.work_s, period_s)
    share, served = len(rows) / len(jobs.accuracy), float(jobs.accuracy[rows].mean())
    return Utility(share * served + (1 - share) * chance, share, served)


def continuous(jobs: Jobs, half_s: float) -> Utility:
    """Weigh each prediction by its waiting time: 1 for plain inference, one half for a wait of `half_s`."""
    waited_s = jobs.inference_duration_s + np.concatenate([[0.0], jobs.training_s[:-1]])
    late_s = np.maximum(0.0, waited_s - jobs.plain_s)
    worth = 1 / (1 + late_s / (half_s - jobs.plain_s))
    value, accuracy = float((jobs.accuracy * worth).mean()), float(jobs.accuracy.mean())
    timeliness = float(worth.mean())
    return Utility(value, 1.0, accuracy, timeliness, value - accuracy * timeliness)


def overhead(jobs: Jobs) -> float:
    """Return the time beyond plain inference as a fraction of the time of plain inference."""
    return float(np.maximum(0.0, jobs.work_s - jobs.plain_s).sum() / (jobs.plain_s * len(jobs.accuracy)))


def relative_period(work_s: float, plain_s: float, speed: float = 1.0) -> int:
    """Return the number of jobs that arrive while one is processed, by the stream's relative speed."""
    return max(1, math.ceil(speed * work_s / plain_s - JITTER))


def relative(jobs: Jobs, speed: float = 1.0) -> Utility:
    """Adapt on as many jobs as the relative adaptation speed allows; the others cost nothing.

    The newest network predicts the others, with the accuracy of the job that was adapted on last.
    """
    job, learned = 0, list[int]()
    while job < len(jobs.accuracy):
        learned.append(job)
        job += relative_period(float(jobs.work_s[job]), jobs.plain_s, speed)
    newest = np.searchsorted(learned, np.arange(len(jobs.accuracy)), side="right") - 1
    value = float(jobs.accuracy[np.array(learned)[newest]].mean())
    return Utility(value, 1.0, value, adapted=len(learned) / len(jobs.accuracy))


def needed_accuracy(utility: float, availability: float) -> float:
    """Return the accuracy of served jobs whose utility is `wanted`; above 1 it is out of reach."""
    return utility / availability
