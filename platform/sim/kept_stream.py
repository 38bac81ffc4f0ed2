"""A stream whose frames are drawn once in a process: the systems of a grid have the same streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from driftlab.datasets.frames import Frames, Stream, Times
from driftlab.platform.core.kept import Kept

FRAME_BYTES = 1000  # of a kept frame besides its pixels; measured


class KeptStream:
    """A stream that keeps the frames it has shown, each by its time."""

    def __init__(self, stream: Stream, name: str, kept: Kept) -> None:
        self._stream, self._name, self._kept = stream, name, kept

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self._stream, name)

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return the frames at these times in new arrays; draw those that are not kept."""
        times = [float(time_s) for time_s in times_s]
        shown = {time_s: self._kept.get((self._name, time_s)) for time_s in times}
        new = [time_s for time_s, frame in shown.items() if frame is None]
        if not times or len(new) == len(times):
            drawn = self._stream.at(times_s)
        elif new:
            drawn = self._stream.at(np.array(new, np.float64))
        for row, time_s in enumerate(new):
            frame = shown[time_s] = drawn[row]
            size = frame.images.nbytes + (0 if frame.labels is None else frame.labels.nbytes) + FRAME_BYTES
            self._kept.put((self._name, time_s), frame, size)
        return drawn if len(new) == len(times) else _joined([shown[time_s] for time_s in times])


def _joined(parts: Sequence[Frames]) -> Frames:
    """Put batches of one stream one after another."""

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        return tuple(box.copy() for boxes in values for box in boxes) if name == "boxes" else np.concatenate(values)

    return Frames(**{field.name: column(field.name) for field in fields(Frames)})
