"""Scores of predictions against the truth, per frame and over the last seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.metrics import windowed
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Answers, Task

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
WINDOW_S = 10.0  # window of the windowed score


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one batch of frames."""

    frame: Floats
    window: Floats
    pixel_accuracy: Floats | None
    counts: Counts  # over the full batch
    by_class: Counts | None  # likewise: truth, predictions and hits of each class


@dataclass
class Scorer:
    """Keeps the counts of the last seconds."""

    classes: int
    task: Task = SEGMENTATION
    _times_s: Floats = field(default_factory=lambda: np.empty(0))
    _counts: Counts | None = None

    def score(self, times_s: Floats, predicted: Answers, truth: Answers) -> Scores:
        """Score frames that follow those scored before."""
        counts = self.task.counts(predicted, truth, self.classes)
        before = self._remember(times_s, counts)
        assert self._counts is not None
        return Scores(
            frame=self.task.score(counts),
            window=self.task.score(windowed(self._counts, self._times_s, WINDOW_S)[before:]),
            pixel_accuracy=self.task.pixel_accuracy(counts),
            counts=counts.sum(axis=0),
            by_class=self.task.by_class(counts, predicted, truth, self.classes),
        )

    def _remember(self, times_s: Floats, counts: Counts) -> int:
        """Append counts, drop those that no later window needs, and return the number of earlier frames."""
        if self._counts is None:
            self._times_s, self._counts = times_s, counts
            return 0
        kept = self._times_s > times_s[0] - WINDOW_S
        self._times_s = np.concatenate([self._times_s[kept], times_s])
        self._counts = np.concatenate([self._counts[kept], counts])
        return int(kept.sum())
