"""The frames of an application, until their predictions and latencies are known and become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
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
WINDOW_S = 10.0  # window of the windowed scores
NO_OTHER: Mapping[int, TaskLabel] = MappingProxyType({})  # every frame's own prediction, or the previous one, is live
EDGE_S = 1e-9  # a prediction that takes exactly the grace is in time, whatever the rounding of k / fps


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one batch of frames; all but the live ones begin with the first prediction."""

    frame: Floats
    window: Floats
    live: Floats  # over the same windows, of the live predictions
    has_truth: npt.NDArray[np.bool_]  # of the frames with a live score
    pixel_accuracy: Floats | None
    counts: Counts | None  # over the full batch
    by_class: Counts | None  # likewise: truth, predictions and hits of each class


@dataclass
class CountWindow:
    """The counts of the last seconds."""

    _times_s: Floats = field(default_factory=lambda: np.empty(0))
    _counts: Counts | None = None

    def add(self, times_s: Floats, counts: Counts) -> Counts:
        """Add the counts of the next frames, and return the sums over the windows that end with them."""
        if not len(times_s):
            return counts
        before = 0
        if self._counts is not None:
            kept = self._times_s > times_s[0] - WINDOW_S
            before = int(kept.sum())
            times_s = np.concatenate([self._times_s[kept], times_s])
            counts = np.concatenate([self._counts[kept], counts])
        self._times_s, self._counts = times_s, counts
        return windowed(counts, times_s, WINDOW_S)[before:]


@dataclass
class Scorer:
    """Scores predictions and live predictions by frame, and over the windows that end with the frames."""

    classes: int
    task: Task = SEGMENTATION
    scored: tuple[int, ...] = ()  # classes that count; none: all
    _predicted: CountWindow = field(default_factory=CountWindow)
    _live: CountWindow = field(default_factory=CountWindow)

    def score(
        self,
        times_s: Floats,
        predicted: TaskLabels,
        truth: TaskLabels,
        live: Mapping[int, TaskLabel] = NO_OTHER,
        unpredicted: int = 0,
    ) -> Scores:
        """Score frames that follow those scored before.

        `live` maps the places of frames whose live prediction differs from `predicted` to it. The first `unpredicted`
        frames come before any prediction.
        """
        full_truth = truth
        if self.scored:
            predicted, truth = self.task.restrict(predicted, full_truth, self.scored)
        counts = self.task.counts(predicted, truth, self.classes)
        live_counts, shown = counts, slice(unpredicted, None)
        if live:
            places = list(live)
            others = predicted[places]
            for index, label in enumerate(live.values()):
                others[index] = label
            if self.scored:
                others, _ = self.task.restrict(others, full_truth[places], self.scored)
            live_counts = counts.copy()
            live_counts[places] = self.task.counts(others, truth[places], self.classes)
        frame, own = self.task.score(counts), counts[shown]
        return Scores(
            frame=frame[shown],
            window=self.task.score(self._predicted.add(times_s[shown], own)),
            live=self.task.score(self._live.add(times_s, live_counts)),
            has_truth=np.isfinite(frame),
            pixel_accuracy=self.task.pixel_accuracy(own),
            counts=own.sum(axis=0) if len(own) else None,
            by_class=self.task.by_class(own, predicted[shown], truth[shown], self.classes) if len(own) else None,
        )


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


@dataclass(frozen=True, eq=False)
class TimedPrediction:
    """A prediction, and when it was ready."""

    ready_s: float
    prediction: TaskLabel


@dataclass
class FrameResults:
    """Frames in order of time; settled ones are scored and become rows."""

    spec: AppNodeConfig
    task: Task
    scorer: Scorer
    waiting: list[FrameResult] = field(default_factory=list)
    reported: int = 0  # frames that have become rows
    recent: list[TimedPrediction] = field(default_factory=list)  # from the live one on, if any
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
        scores = None
        if settled:
            predictions, live = self._predictions(settled)
            predicted = self._stack(predictions)
            unpredicted = sum(label is None for label in predictions)
            scores = self._scores(settled, predicted, live, unpredicted)
            rows["frames"].append(self._rows(settled, scores))
            rows["snapshots"] += self._snapshots(settled[unpredicted:], predicted[unpredicted:])
        adaptation_rows = self.adaptation_rows
        if adaptation_rows:
            rows["adaptations"], self.adaptation_rows = adaptation_rows, []
        self.reported += len(settled)
        return Reply(self._facts(settled, scores), rows)

    def _predictions(
        self, settled: Sequence[FrameResult]
    ) -> tuple[list[TaskLabel | None], dict[int, TaskLabel | None]]:
        """Return the prediction of each frame, and the live predictions that differ from it, by place.

        A frame that was not processed repeats the previous prediction. The live prediction is the newest one that was
        ready when the frame was shown, or at most the grace later. None: there is none yet.
        """
        predictions: list[TaskLabel | None] = []
        others: dict[int, TaskLabel | None] = {}
        for place, result in enumerate(settled):
            if result.prediction is not None:
                self.recent.append(TimedPrediction(result.time_s + result.latency_s, result.prediction))
            until_s = result.time_s + self.spec.grace_s + EDGE_S
            ready = [index for index, one in enumerate(self.recent) if one.ready_s <= until_s]
            if ready:
                del self.recent[: ready[-1]]
            if self.recent and not (ready and len(self.recent) == 1):
                others[place] = self.recent[0].prediction if ready else None
            predictions.append(self.recent[-1].prediction if self.recent else None)
        return predictions, others

    def _stack(self, labels: Sequence[TaskLabel | None]) -> TaskLabels:
        """Stack labels; for None, nothing is predicted."""
        height, width = self.spec.student.height, self.spec.student.width
        stacked = self.task.blank(len(labels), height, width)
        for place, label in enumerate(labels):
            stacked[place] = self.task.nothing(height, width) if label is None else label
        return stacked

    def _scores(
        self,
        settled: Sequence[FrameResult],
        predicted: TaskLabels,
        live: Mapping[int, TaskLabel | None],
        unpredicted: int,
    ) -> Scores | None:
        """Score frames where the truth is available."""
        if settled[0].truth is None:
            return None
        times_s = np.array([result.time_s for result in settled])
        truth = self._stack([result.truth for result in settled])
        others = dict(zip(live, self._stack(list(live.values())), strict=True))
        return self.scorer.score(times_s, predicted, truth, others, unpredicted)

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
            live_scored=0 if scores is None else int(scores.has_truth.sum()),
            live_score_sum=0.0 if scores is None else float(scores.live[scores.has_truth].sum()),
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
            "score_live": None if scores is None else scores.live,
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
