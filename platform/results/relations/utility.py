"""What answers are worth where time is short: utilities of jobs by when they are served, waited for, or adapted on.

A job is a batch of frames: it is answered, and then learned from, which blocks the next one. Job k arrives at k times
the period. Pure functions of arrays; `timing.py` makes jobs of the tables of a run.
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
    """Jobs of one stream: how well each is answered, and how long answering and learning take alone."""

    accuracy: Floats
    inference_duration_s: Floats
    training_s: Floats
    plain_s: float  # time of one job without any learning

    @property
    def work_s(self) -> Floats:
        """Return how long each job keeps the machine."""
        return self.inference_duration_s + self.training_s


@dataclass(frozen=True)
class Utility:
    """What the jobs of a stream are worth, and what it is made of."""

    value: float
    availability: float = 1.0  # share of the jobs that are served
    served: float = math.nan  # mean accuracy of these
    timeliness: float = 1.0  # mean worth of an answer by its waiting alone
    alignment: float = 0.0  # how much accuracy and timeliness go together
    adapted: float = 1.0  # share of the jobs that are learned from


def served_jobs(
    work_s: Sequence[float] | Floats,
    period_s: float,
    *,
    tie: Literal["new", "waiting"] = "new",
    drain: bool = False,
    queue: bool = True,
) -> Rows:
    """Number the jobs that a machine serves which has room for one job that waits; a newer one takes its place.

    A job that arrives just when the machine gets free is taken, unless `tie` prefers the one that waited. With `drain`
    the job that waits at the end is served. Without a queue a job that finds the machine busy is lost.
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
    """Take the mean accuracy over all jobs where the environment sets the pace; a missed one is right by chance."""
    rows = served_jobs(jobs.work_s, period_s)
    share, served = len(rows) / len(jobs.accuracy), float(jobs.accuracy[rows].mean())
    return Utility(share * served + (1 - share) * chance, share, served)


def continuous(jobs: Jobs, half_s: float) -> Utility:
    """Weigh each answer by its waiting: plain inference has its full worth, a waiting of `half_s` half of it."""
    waited_s = jobs.inference_duration_s + np.concatenate([[0.0], jobs.training_s[:-1]])
    late_s = np.maximum(0.0, waited_s - jobs.plain_s)
    worth = 1 / (1 + late_s / (half_s - jobs.plain_s))
    value, accuracy = float((jobs.accuracy * worth).mean()), float(jobs.accuracy.mean())
    timeliness = float(worth.mean())
    return Utility(value, 1.0, accuracy, timeliness, value - accuracy * timeliness)


def overhead(jobs: Jobs) -> float:
    """Return the time that jobs take above plain inference, over that of plain inference."""
    return float(np.maximum(0.0, jobs.work_s - jobs.plain_s).sum() / (jobs.plain_s * len(jobs.accuracy)))


def relative_period(work_s: float, plain_s: float, speed: float = 1.0) -> int:
    """Count the jobs that arrive while one is worked on, where the stream is so fast relative to plain inference."""
    return max(1, math.ceil(speed * work_s / plain_s - JITTER))


def relative(jobs: Jobs, speed: float = 1.0) -> Utility:
    """Count as adapted on only as many jobs as relative adaptation speed allows; the others cost nothing.

    They are answered by the newest network, so that accuracy is that of the next job that is adapted on.
    """
    job, learned = 0, list[int]()
    while job < len(jobs.accuracy):
        learned.append(job)
        job += relative_period(float(jobs.work_s[job]), jobs.plain_s, speed)
    newest = np.searchsorted(learned, np.arange(len(jobs.accuracy)), side="right") - 1
    value = float(jobs.accuracy[np.array(learned)[newest]].mean())
    return Utility(value, 1.0, value, adapted=len(learned) / len(jobs.accuracy))


def needed(wanted: float, availability: float) -> float:
    """Return the accuracy that served jobs must have to be worth as much as wanted; above 1 none can (solvency)."""
    return wanted / availability
