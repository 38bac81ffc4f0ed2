"""Share streams between the trials of a process; all use the same seeds, so frames are drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from driftlab.datasets.frames import Frames, Stream, Times
from driftlab.platform.sim.nodes.camera import CameraNode, stream_of
from driftlab.platform.sim.setting import StreamSpec

KEPT_BYTES = 256 * 2**20  # of frames, in a process; those beyond are drawn again in every trial


class SharedStreams:
    """The streams that devices of this process have opened, with the frames that they have shown."""

    def __init__(self) -> None:
        self.left_bytes = KEPT_BYTES
        self._streams: dict[str, Stream] = {}

    def open(self, spec: StreamSpec, scale: int) -> Stream:
        """Open a stream, or give the one that was opened before."""
        name = f"{spec} at {scale}"
        if name not in self._streams:
            self._streams[name] = SharedStream(stream_of(spec, scale), self)
        return self._streams[name]


class SharingCamera(CameraNode):
    """A device that watches a shared stream."""

    def __init__(self, spec: StreamSpec, streams: SharedStreams) -> None:
        super().__init__(spec)
        self._shared = streams

    def _open(self, scale: int) -> Stream:
        return self._shared.open(self._spec, scale)


class SharedStream:
    """A stream that keeps the frames it has shown."""

    def __init__(self, stream: Stream, streams: SharedStreams) -> None:
        self._stream, self._shared = stream, streams
        self._frames: dict[float, Frames] = {}  # by time, one each

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self._stream, name)

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Give the frames shown at these times, in arrays that are the caller's own."""
        times = [float(time_s) for time_s in times_s]
        new = [time_s for time_s in dict.fromkeys(times) if time_s not in self._frames]
        drawn = self._stream.at(np.array(new, np.float64)) if new or not times else None
        if drawn is None:
            return _joined([self._frames[time_s] for time_s in times])
        shown = {time_s: drawn[row] for row, time_s in enumerate(new)}
        parts = [shown[time_s] if time_s in shown else self._frames[time_s] for time_s in times]
        for time_s, frame in shown.items():
            self._keep(time_s, frame)
        return _joined(parts) if parts else drawn

    def _keep(self, time_s: float, frame: Frames) -> None:
        size = frame.images.nbytes + (0 if frame.labels is None else frame.labels.nbytes)
        if size <= self._shared.left_bytes:
            self._shared.left_bytes -= size
            self._frames[time_s] = frame


def _joined(parts: Sequence[Frames]) -> Frames:
    """Put batches of one stream one after another."""

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        return tuple(box.copy() for boxes in values for box in boxes) if name == "boxes" else np.concatenate(values)

    return Frames(**{field.name: column(field.name) for field in fields(Frames)})
