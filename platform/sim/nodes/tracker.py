"""A tracker: warps late labels along optical flow, until newer ones arrive."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.kept import content_key, kept
from driftlab.platform.networks.tasks import flow
from driftlab.platform.networks.tasks.flow import Gray, Map
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Task, TaskLabel

LATEST_S = 60.0  # later first labels are not awaited


@dataclass(frozen=True, eq=False)
class Keyframe:
    """Labels of a frame captured at one time, in use from their arrival."""

    captured_s: float
    arrive_s: float
    labels: TaskLabel


@dataclass
class Tracker:
    """Keeps the frames since the current keyframe, because labels describe an earlier frame."""

    task: Task = SEGMENTATION
    chained: bool = True  # warp frame by frame; otherwise by one flow from the keyframe
    _keyframes: list[Keyframe] = field(default_factory=list)
    _seen: dict[float, Gray] = field(default_factory=dict)  # by time
    _steps: dict[tuple[float, float], Map] = field(default_factory=dict)  # flow from a frame to an earlier one
    _followed: list[float] = field(default_factory=list)  # times of the frames that were processed
    _flows: int = 0  # number of flows that the device computed, kept here or not

    def add(self, keyframe: Keyframe) -> None:
        """Add labels that have just arrived."""
        self._keyframes.append(keyframe)

    def add_frame(self, time_s: float, image: npt.NDArray[np.uint8]) -> None:
        """Keep a frame: its labels may come later."""
        self._seen[time_s] = flow.gray(image)

    def follow(self, time_s: float, predicted: TaskLabel) -> tuple[TaskLabel, int]:
        """Replace a prediction by warped labels where they are known; return the number of computed flows too."""
        before, keyframe = self._flows, self._in_use(time_s)
        labels = predicted
        if keyframe is not None and keyframe.captured_s in self._seen:
            source = self._source(keyframe.captured_s, time_s)
            labels = self.task.warp(keyframe.labels, source, predicted.copy())
        self._followed.append(time_s)
        self._drop_frames(time_s)
        return labels, self._flows - before

    def _in_use(self, time_s: float) -> Keyframe | None:
        arrived = [keyframe for keyframe in self._keyframes if keyframe.arrive_s <= time_s]
        return arrived[-1] if arrived else None

    def _source(self, captured_s: float, time_s: float) -> Map:
        """Return the position of each current pixel in the keyframe."""
        if not self.chained:
            return flow.identity(*self._seen[time_s].shape) + self._step(captured_s, time_s)
        source = flow.identity(*self._seen[captured_s].shape)
        followed = (time for time in self._followed if captured_s < time < time_s)
        for before_s, now_s in itertools.pairwise((captured_s, *followed, time_s)):
            source = flow.compose(self._step(before_s, now_s), source) if before_s < now_s else source
        return source

    def _step(self, before_s: float, now_s: float) -> Map:
        if (before_s, now_s) not in self._steps:
            now, before = self._seen[now_s], self._seen[before_s]
            step = kept().once(content_key("flow", now, before), partial(flow.flow, now, before))
            self._steps[before_s, now_s] = step
            self._flows += 1
        return self._steps[before_s, now_s]

    def _drop_frames(self, now_s: float) -> None:
        """Drop frames that no labels can need: before the keyframe, or, without one, older than LATEST_S."""
        keyframe = self._in_use(now_s)
        since_s = now_s - LATEST_S if keyframe is None else keyframe.captured_s
        if keyframe is not None:
            self._keyframes = self._keyframes[self._keyframes.index(keyframe) :]
        self._seen = {time: image for time, image in self._seen.items() if time >= since_s}
        self._steps = {times: step for times, step in self._steps.items() if times[1] > since_s}
        self._followed = [time for time in self._followed if time >= since_s]
