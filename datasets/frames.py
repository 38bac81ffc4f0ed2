"""Frames with ground truth, and the protocol of streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError

Times = npt.NDArray[np.float64]
Index = int | slice | npt.NDArray[np.intp] | npt.NDArray[np.bool_]
IGNORE = 255  # label of pixels that are left out of losses and scores
MAX_PIXEL_CLASSES = IGNORE - 1  # label maps have one byte per pixel; frames and boxes may have any number of classes
NO_CLASS = -1  # class of a frame without ground truth


@dataclass(frozen=True, eq=False)
class Frames:
    """A batch of frames as arrays of equal length; ground truth that the stream lacks is None."""

    times_s: Times  # [n]
    images: npt.NDArray[np.uint8]  # [n, height, width, 3], RGB
    scenes: npt.NDArray[np.int32]  # [n] number of the scene; a recurring scene has the same number
    labels: npt.NDArray[np.uint8] | None = None  # [n, height, width] class per pixel, IGNORE where unknown
    boxes: tuple[npt.NDArray[np.float32], ...] | None = None  # per frame [m, 5]: class, x0, y0, x1, y1 in pixels
    classes: npt.NDArray[np.int64] | None = None  # [n] class of the whole frame, NO_CLASS where unknown

    def __len__(self) -> int:
        return len(self.times_s)

    def __getitem__(self, index: Index) -> Frames:
        """Return a part of the batch; an integer keeps the batch axis, so the result is always a batch."""
        rows = np.atleast_1d(np.arange(len(self))[index])
        return Frames(
            times_s=self.times_s[rows],
            images=self.images[rows],
            scenes=self.scenes[rows],
            labels=None if self.labels is None else self.labels[rows],
            boxes=None if self.boxes is None else tuple(self.boxes[row] for row in rows),
            classes=None if self.classes is None else self.classes[rows],
        )


@runtime_checkable
class Stream(Protocol):
    """Frames of a fixed size at any time, a deterministic function of the seed."""

    @property
    def name(self) -> str: ...
    @property
    def fps(self) -> float: ...
    @property
    def duration_s(self) -> float: ...
    @property
    def size(self) -> tuple[int, int]:
        """Return height and width in pixels."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names in order of the label values."""
        ...

    @property
    def has_truth(self) -> bool: ...

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Render or read the frames at these times."""
        ...

    def changes_s(self) -> tuple[float, ...]:
        """Return the times at which the scene changes, as far as they are known."""
        ...


@runtime_checkable
class FileStream(Stream, Protocol):
    """A stream that is read from files, which may be damaged."""

    def check(self) -> None:
        """Read all frames of the stream; raise DataError at the first unusable file."""
        ...


def frame_number(stream: Stream, time_s: float) -> int:
    """Return the number of the frame at a time, which starts at number / fps; raise after the end."""
    if not 0 <= time_s < stream.duration_s:
        raise RequestError(
            f"Stream '{stream.name}' has no frame at {time_s:g} s: "
            f"it runs from 0 to {stream.duration_s:g} s, the end excluded."
        )
    return math.floor(time_s * stream.fps + 1e-6)


def frame_times(stream: Stream, start_s: float, stop_s: float) -> Times:
    """Return the times of the stream's frames in [start, stop); frame k starts at k / fps."""
    first = math.ceil(start_s * stream.fps - 1e-9)
    last = math.ceil(min(stop_s, stream.duration_s) * stream.fps - 1e-9)
    return np.arange(first, max(first, last), dtype=np.float64) / stream.fps
