"""An application: one vision task on one device, its model, and what the model sees."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.errors import WireError
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.core.records import Applied, Columns, Reply, Watched, Weights
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.models import delta, vector, zoo
from driftlab.platform.models.account import account
from driftlab.platform.models.predict import predict
from driftlab.platform.models.tasks import Answers
from driftlab.platform.nodes import student
from driftlab.platform.nodes.scorer import Scorer, Scores
from driftlab.platform.nodes.specs import AppNodeSpec
from driftlab.platform.nodes.tracker import Keyframe, Tracker
from driftlab.platform.scaling.base import Budget
from driftlab.platform.world.cost import inference_j, inference_s
from driftlab.platform.world.damage import Damage, received

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Version:
    """The weights that are in use from a time on."""

    number: int
    since_s: float
    vector: vector.Vector


@dataclass(frozen=True, eq=False)
class View:
    """What the application makes of one window."""

    frames: Frames
    truth: Answers | None
    processed: Flags
    numbers: npt.NDArray[np.int32]  # version in use per frame
    predicted: Answers
    scores: Scores | None


class Application:
    """Runs its model on every frame it has time for; swaps weights only between two frames."""

    def __init__(self, spec: AppNodeSpec, weights: Weights) -> None:
        self._spec, self._task = spec, zoo.task_of(spec.student.network)
        self._adaptation = spec.student.adaptation.make()
        self._scaling = spec.student.scaling.make()
        self._family = student.family_of(spec.student, weights)
        self._versions: list[Version] = []
        self._run(Budget(), 0)
        self._busy_until_s = float("-inf")
        self._last: Answers | None = None  # one answer
        self._tracker = Tracker(self._task, chained=spec.chained)
        self._scorer = Scorer(spec.student.classes, self._task)
        self._seen = 0

    def switch(self, variant: int) -> Reply:
        """Run another network of the family from the next window on; what this one has learned comes along.

        Updates that are still on their way were made for another network and will be refused.
        """
        newest = self._versions[-1]
        self._use(newest)
        self._family = self._scaling.absorb(self._family, self._model)
        self._run(Budget(variant=variant), newest.number)
        return Reply(Applied(newest.number, accepted=True))

    def apply(self, update: bytes, arrive_s: float, damage: Damage | None = None) -> Reply:
        """Take an update into the shadow copy; frames shown from its arrival on use it."""
        newest = self._versions[-1]
        try:
            changed = delta.apply(received(update, damage), newest.vector, self._layout, base=newest.number)
        except WireError as error:
            return Reply(Applied(newest.number, accepted=False, reason=str(error)))
        self._versions.append(Version(changed.version, arrive_s, changed.vector))
        return Reply(Applied(changed.version, accepted=True))

    def watch(self, frames: Frames, labels: Answers | None, share: float) -> Reply:
        """Run the model over one window; where labels are given they are the truth, else the frames carry it."""
        truth = self._task.truth(frames) if labels is None else labels
        latency_s = inference_s(self._cost, self._spec.hardware, share=share)
        processed = self._schedule(frames, latency_s)
        versions = self._versions_at(frames)
        predicted = self._predict(frames, processed, versions)
        if self._spec.tracks:
            predicted = self._tracker.follow(frames, predicted)
        scores = None if truth is None else self._scorer.score(frames.times_s, predicted, truth)
        view = View(frames, truth, processed, self._numbers()[versions], predicted, scores)
        rows = {"frames": [self._frame_rows(view, latency_s)], "pictures": self._pictures(view)}
        self._seen += len(frames)
        self._versions = self._versions[int(versions[-1]) :]
        return Reply(self._facts(view, latency_s), rows)

    def track(self, packed: bytes, captured_s: float, arrive_s: float, damage: Damage | None = None) -> Reply:
        """Take the labels of one frame; frames shown from their arrival on carry them along."""
        spec = self._spec.student
        try:
            unpacked = self._task.unpack(received(packed, damage), spec.height, spec.width)
        except WireError as error:
            return Reply(Applied(self._versions[-1].number, accepted=False, reason=str(error)))
        self._tracker.add(Keyframe(captured_s, arrive_s, self._task.known(unpacked, spec.classes)))
        unknown = self._task.unknown(unpacked[None], spec.classes)
        return Reply(Applied(self._versions[-1].number, accepted=True, unknown=unknown))

    def finish(self) -> Reply:
        """Tell which weights it ended with."""
        return Reply(hashlib.sha256(self._versions[-1].vector.tobytes()).hexdigest()[:16])

    def _run(self, budget: Budget, number: int) -> None:
        """Take a network of the family into use; its weights are the version of this number."""
        self._model = self._scaling.select(self._family, budget)
        self._state = self._adaptation.prepare(self._model)
        self._layout = vector.layout_of(self._model)
        known = self._layout.size == self._spec.cost.parameters  # counting takes a while
        size = self._spec.student.height, self._spec.student.width
        self._cost = self._spec.cost if known else account(self._model, *size)
        self._versions = [Version(number, float("-inf"), vector.read(self._model))]
        self._loaded = number  # of the version that the model holds

    def _schedule(self, frames: Frames, latency_s: float) -> Flags:
        """Choose the frames the device has time for; a frame that comes while it is busy is skipped."""
        processed = np.zeros(len(frames), dtype=bool)
        for index, time_s in enumerate(frames.times_s):
            if time_s >= self._busy_until_s - 1e-9:
                processed[index] = True
                self._busy_until_s = float(time_s) + latency_s
        return processed

    def _versions_at(self, frames: Frames) -> Indices:
        """Position in the list of versions of the newest one that had arrived when each frame was shown."""
        since = np.array([version.since_s for version in self._versions])
        return np.searchsorted(since, frames.times_s, side="right") - 1

    def _numbers(self) -> npt.NDArray[np.int32]:
        return np.array([version.number for version in self._versions], dtype=np.int32)

    def _predict(self, frames: Frames, processed: Flags, versions: Indices) -> Answers:
        """Predict the processed frames version by version; a skipped frame shows the last prediction."""
        predicted = self._task.blank(*frames.images.shape[:3])
        for position in np.unique(versions[processed]):
            mine = np.flatnonzero(processed & (versions == position))
            self._use(self._versions[position])
            predicted[mine] = self._infer(frames.images[mine])
        last = self._last
        for index in range(len(frames)):
            if not processed[index] and last is not None:  # the first frame of all is never skipped
                predicted[index] = last
            last = predicted[index]
        self._last = last
        return predicted

    def _use(self, version: Version) -> None:
        if version.number != self._loaded:
            vector.write(self._model, version.vector)
            self._loaded = version.number

    def _infer(self, images: npt.NDArray[np.uint8]) -> Answers:
        """Let the model follow the frames where its adaptation learns on the device, and predict them."""
        rng = rng_for(self._spec.student.seed, "adapt", self._spec.app, self._seen)
        batch = Batch(images, None, rng, self._task)
        self._state = self._adaptation.adapt(self._model, self._state, batch, Phase()).state
        return predict(self._model, images, task=self._task, device=self._spec.student.torch_device)

    def _facts(self, view: View, latency_s: float) -> Watched:
        processed = int(view.processed.sum())
        scores = view.scores
        known = np.isfinite(scores.frame) if scores is not None else np.zeros(len(view.frames), dtype=bool)
        return Watched(
            frames=len(view.frames),
            processed=processed,
            busy_s=processed * latency_s,
            energy_j=processed * inference_j(self._cost, self._spec.hardware),
            scored=int(known.sum()),
            frame_score_sum=0.0 if scores is None else float(scores.frame[known].sum()),
            window_score_sum=0.0 if scores is None else float(scores.window[known].sum()),
            counts=None if scores is None else scores.counts,
        )

    def _frame_rows(self, view: View, latency_s: float) -> Columns:
        frames, scores = view.frames, view.scores
        return {
            "device": self._spec.device,
            "app": self._spec.app,
            "frame": np.arange(self._seen, self._seen + len(frames), dtype=np.int32),
            "time_s": frames.times_s,
            "scene": frames.scenes,
            "version": view.numbers,
            "processed": view.processed,
            "latency_ms": np.where(view.processed, latency_s * 1e3, np.nan),
            "score_frame": None if scores is None else scores.frame,
            "score_window": None if scores is None else scores.window,
            "pixel_accuracy": None if scores is None else scores.pixel_accuracy,
        }

    def _pictures(self, view: View) -> list[Columns]:
        """Keep the frames that the report will show."""
        frames = view.frames
        wanted = np.isclose(frames.times_s[:, None], np.array(self._spec.picture_times_s)[None, :], rtol=0, atol=1e-6)
        return [
            {
                "device": self._spec.device,
                "time_s": [float(frames.times_s[i])],
                "scene": [int(frames.scenes[i])],
                "height": frames.images.shape[1],
                "width": frames.images.shape[2],
                "image": [_png(frames.images[i])],
                "truth": [None if view.truth is None else _png(self._task.drawn(view.truth[i], frames.images[i]))],
                "prediction": [_png(self._task.drawn(view.predicted[i], frames.images[i]))],
            }
            for i in np.flatnonzero(wanted.any(axis=1))
        ]


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    _, encoded = cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))
    return encoded.tobytes()
