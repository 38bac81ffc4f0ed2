"""The frames of an application, until their predictions and latencies are known and become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.platform.core.metrics import windowed
from driftlab.platform.core.records import Columns, InferenceReport, Reply
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Task, TaskLabel, TaskLabels
from driftlab.platform.sim.setting import AppNodeConfig

Image = npt.NDArray[np.uint8]
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

    def score(self, times_s: Floats, predicted: TaskLabels, truth: TaskLabels) -> Scores:
        """Score frames that follow those scored before."""
        counts = self.task.counts(predicted, truth, self.classes)
        before = self._append(times_s, counts)
        assert self._counts is not None
        return Scores(
            frame=self.task.score(counts),
            window=self.task.score(windowed(self._counts, self._times_s, WINDOW_S)[before:]),
            pixel_accuracy=self.task.pixel_accuracy(counts),
            counts=counts.sum(axis=0),
            by_class=self.task.by_class(counts, predicted, truth, self.classes),
        )

    def _append(self, times_s: Floats, counts: Counts) -> int:
        """Append counts, drop those that no later window needs, and return the number of earlier frames."""
        if self._counts is None:
            self._times_s, self._counts = times_s, counts
            return 0
        kept = self._times_s > times_s[0] - WINDOW_S
        self._times_s = np.concatenate([self._times_s[kept], times_s])
        self._counts = np.concatenate([self._counts[kept], counts])
        return int(kept.sum())


@dataclass(eq=False)
class FrameResult:
    """One frame, with its prediction."""

    time_s: float
    image: Image
    scene: int
    truth: TaskLabel | None
    version: int = 0  # in use when the frame was shown
    processed: bool = False
    latency_s: float = float("nan")
    busy_s: float = 0.0  # model time on it, and on the batch that it completed
    prediction: TaskLabel | None = None  # None: the previous one remains
    open: bool = False  # its prediction or latency is not computed yet


@dataclass
class FrameResults:
    """Frames in order of time; settled ones are scored and become rows."""

    spec: AppNodeConfig
    task: Task
    scorer: Scorer
    waiting: list[FrameResult] = field(default_factory=list)
    reported: int = 0  # frames that have become rows
    last: TaskLabel | None = None
    busy_s: float = 0.0  # time of training instead of inference since the last call
    joules: dict[str, float] = field(default_factory=dict)
    adaptation_rows: list[Columns] = field(default_factory=list)  # rows of the adaptations table
    memory_bytes: int = 0  # peak memory of training

    def add(self, frames: Frames, truth: TaskLabels | None) -> list[FrameResult]:
        """Add frames, and return them one by one."""
        truths = [None] * len(frames) if truth is None else truth
        rows = zip(frames.times_s.tolist(), frames.images, frames.scenes.tolist(), truths, strict=True)
        added = [FrameResult(*row) for row in rows]
        self.waiting += added
        return added

    def spend(self, purpose: str, joules: float) -> None:
        self.joules[purpose] = self.joules.get(purpose, 0.0) + joules

    def collect_rows(self) -> Reply:
        """Turn every frame before the first open one into rows."""
        stop = next((index for index, result in enumerate(self.waiting) if result.open), len(self.waiting))
        settled, self.waiting = self.waiting[:stop], self.waiting[stop:]
        rows: dict[str, list[Columns]] = {"frames": [], "snapshots": []}
        shown, adaptation_rows = self._shown(settled), self.adaptation_rows
        predicted = self._predictions(shown)
        scores = self._scores(shown, predicted)
        if settled:
            rows["frames"].append(self._rows(settled, scores))
            rows["snapshots"] += self._snapshots(shown, predicted)
        if adaptation_rows:
            rows["adaptations"], self.adaptation_rows = adaptation_rows, []
        self.reported += len(settled)
        return Reply(self._facts(settled, scores), rows)

    def _shown(self, settled: list[FrameResult]) -> list[FrameResult]:
        """Leave out the frames before the first prediction: they have no score."""
        if self.last is not None:
            return settled
        return settled[
            next((index for index, result in enumerate(settled) if result.prediction is not None), len(settled)) :
        ]

    def _predictions(self, shown: Sequence[FrameResult]) -> TaskLabels:
        """Stack the predictions; a frame without one repeats the previous one."""
        predictions = self.task.blank(len(shown), self.spec.student.height, self.spec.student.width)
        for index, result in enumerate(shown):
            if result.prediction is not None:
                predictions[index] = result.prediction
            elif self.last is not None:
                predictions[index] = self.last
            self.last = predictions[index]
        return predictions

    def _scores(self, shown: Sequence[FrameResult], predicted: TaskLabels) -> Scores | None:
        """Score predictions where the truth is available."""
        if not shown or shown[0].truth is None:
            return None
        truth = self.task.blank(len(shown), self.spec.student.height, self.spec.student.width)
        for index, result in enumerate(shown):
            truth[index] = result.truth
        return self.scorer.score(np.array([result.time_s for result in shown]), predicted, truth)

    def _facts(self, settled: Sequence[FrameResult], scores: Scores | None) -> InferenceReport:
        lengths, counts = np.unique([result.busy_s for result in settled], return_counts=True)
        known = np.isfinite(scores.frame) if scores is not None else np.zeros(len(settled), dtype=bool)
        busy_s, self.busy_s = self.busy_s, 0.0
        joules, self.joules = self.joules, {}
        return InferenceReport(
            frames=len(settled),
            processed=sum(result.processed for result in settled),
            busy_s=busy_s + float(sum(count * length for length, count in zip(lengths, counts, strict=True))),
            joules=joules,
            scored=int(known.sum()),
            frame_score_sum=0.0 if scores is None else float(scores.frame[known].sum()),
            window_score_sum=0.0 if scores is None else float(scores.window[known].sum()),
            counts=None if scores is None else scores.counts,
            memory_bytes=self.memory_bytes,
            by_class=None if scores is None else scores.by_class,
        )

    def _rows(self, settled: Sequence[FrameResult], scores: Scores | None) -> Columns:
        def score(found: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64] | None:
            return None if found is None else np.concatenate([np.full(len(settled) - len(found), np.nan), found])

        return {
            "device": self.spec.device,
            "app": self.spec.app,
            "frame": np.arange(self.reported, self.reported + len(settled), dtype=np.int32),
            "time_s": np.array([result.time_s for result in settled]),
            "scene": np.array([result.scene for result in settled], dtype=np.int32),
            "version": np.array([result.version for result in settled], dtype=np.int32),
            "processed": np.array([result.processed for result in settled]),
            "latency_ms": np.array([result.latency_s for result in settled]) * 1e3,
            "score_frame": None if scores is None else score(scores.frame),
            "score_window": None if scores is None else score(scores.window),
            "pixel_accuracy": None if scores is None else score(scores.pixel_accuracy),
        }

    def _snapshots(self, shown: Sequence[FrameResult], predicted: TaskLabels) -> list[Mapping[str, Any]]:
        """Keep the frames for the report."""
        times_s = np.array([result.time_s for result in shown])
        wanted = np.isclose(times_s[:, None], np.array(self.spec.snapshot_times_s)[None, :], rtol=0, atol=1e-6)
        return [
            {
                "device": self.spec.device,
                "time_s": [result.time_s],
                "scene": [result.scene],
                "height": result.image.shape[0],
                "width": result.image.shape[1],
                "image": [_png(result.image)],
                "truth": [None if result.truth is None else _png(self.task.draw(result.truth, result.image))],
                "prediction": [_png(self.task.draw(predicted[index], result.image))],
            }
            for index, result in enumerate(shown)
            if wanted[index].any()
        ]


def _png(image: Image) -> bytes:
    _, encoded = cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))
    return encoded.tobytes()
