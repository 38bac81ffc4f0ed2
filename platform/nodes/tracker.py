"""A tracker: carries answers that arrived late along with the motion, until newer ones arrive."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from driftlab.datasets.frames import Frames
from driftlab.platform.models import flow
from driftlab.platform.models.flow import Gray, Map
from driftlab.platform.models.tasks import SEGMENTATION, Answer, Answers, Task

LATEST_S = 60.0  # the first labels are not waited for any longer


@dataclass(frozen=True, eq=False)
class Keyframe:
    """Labels of the frame captured at one time, in use from when they arrived."""

    captured_s: float
    arrive_s: float
    labels: Answer


@dataclass
class Tracker:
    """Remembers frames since the keyframe in use, because labels tell of a frame that is long gone."""

    task: Task = SEGMENTATION
    chained: bool = True  # follow the motion frame by frame; otherwise one flow straight to the keyframe
    _keyframes: list[Keyframe] = field(default_factory=list)
    _seen: dict[float, Gray] = field(default_factory=dict)  # by time
    _steps: dict[float, Map] = field(default_factory=dict)  # flow from each frame to the one before

    def add(self, keyframe: Keyframe) -> None:
        """Take labels that have just arrived."""
        self._keyframes.append(keyframe)

    def follow(self, frames: Frames, predicted: Answers) -> Answers:
        """Replace predictions by labels that were carried here, from the first labels on and where they are known."""
        tracked: Answers = predicted.copy()
        for index, time_s in enumerate(map(float, frames.times_s)):
            self._seen[time_s] = flow.gray(frames.images[index])
            keyframe = self._in_use(time_s)
            if keyframe is not None and keyframe.captured_s in self._seen:
                source = self._source(keyframe.captured_s, time_s)
                tracked[index] = self.task.carried(keyframe.labels, source, predicted[index])
        self._forget(float(frames.times_s[-1]))
        return tracked

    def _in_use(self, time_s: float) -> Keyframe | None:
        arrived = [keyframe for keyframe in self._keyframes if keyframe.arrive_s <= time_s]
        return arrived[-1] if arrived else None

    def _source(self, captured_s: float, time_s: float) -> Map:
        """Say where each pixel shown now was in the keyframe."""
        if not self.chained:
            now, then = self._seen[time_s], self._seen[captured_s]
            return flow.identity(*now.shape) + flow.flow(now, then)
        source = flow.identity(*self._seen[captured_s].shape)
        times = sorted(time for time in self._seen if captured_s <= time <= time_s)
        for before_s, now_s in itertools.pairwise(times):
            source = flow.follow(self._step(before_s, now_s), source)
        return source

    def _step(self, before_s: float, now_s: float) -> Map:
        if now_s not in self._steps:
            self._steps[now_s] = flow.flow(self._seen[now_s], self._seen[before_s])
        return self._steps[now_s]

    def _forget(self, now_s: float) -> None:
        """Drop what no labels that are in use or on their way can need: everything before the keyframe in use."""
        keyframe = self._in_use(now_s)
        since_s = now_s - LATEST_S if keyframe is None else keyframe.captured_s
        if keyframe is not None:
            self._keyframes = self._keyframes[self._keyframes.index(keyframe) :]
        self._seen = {time: image for time, image in self._seen.items() if time >= since_s}
        self._steps = {time: step for time, step in self._steps.items() if time > since_s}
