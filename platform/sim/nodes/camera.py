"""A device: a camera in a drifting world, and the encoder of its samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import Frames, Stream, frame_times
from driftlab.platform.core.kept import kept
from driftlab.platform.core.records import Captured, Reply, Uploaded
from driftlab.platform.sim.kept_stream import KeptStream
from driftlab.platform.sim.nodes.boundaries import BoundaryDetector, image_statistics
from driftlab.platform.sim.setting import StreamSpec
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack


def stream_of(spec: StreamSpec, scale: int = 1) -> Stream:
    """Open a stream at the student's size or so many times larger."""
    return open_stream(
        spec.workload,
        seed=spec.seed,
        height=spec.height * scale,
        width=spec.width * scale,
        fps=spec.fps,
        duration_s=spec.duration_s,
        **dict(spec.params),
    )


class CameraNode:
    """Captures every frame, and sends the requested ones."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._streams: dict[int, Stream] = {}  # by scale: how many times larger than the student's input
        self._boundaries = BoundaryDetector()
        self._sent: dict[tuple[float, ...], Frames] = {}  # the newest two samples, whose truth an oracle may request

    def __getstate__(self) -> Mapping[str, Any]:
        """Drop streams and cached frames: a restored device opens its streams again."""
        return {"_spec": self._spec, "_boundaries": self._boundaries, "_streams": {}, "_sent": {}}

    def _open(self, scale: int) -> Stream:
        return stream_of(self._spec, scale)

    def _stream(self, scale: int = 1) -> Stream:
        """Return the stream at the student's size or larger."""
        if scale not in self._streams:
            self._streams[scale] = KeptStream(self._open(scale), f"{self._spec} at {scale}", kept())
        return self._streams[scale]

    def capture(self, start_s: float, stop_s: float) -> Reply:
        """Capture the frames of one window."""
        stream = self._stream()
        frames = stream.at(frame_times(stream, start_s, stop_s))
        return Reply(Captured(len(frames), stream.has_truth), payload=frames)

    def upload(self, sampling: Sampling) -> Reply:
        """Encode the sampled frames; the payload has exactly the bytes that the link carries."""
        shown = self._sampled(sampling.times_s, sampling.scale)
        started = time.perf_counter()
        packed = pack(shown.images, sampling.codec)
        host_seconds = time.perf_counter() - started
        newest_s = float(shown.times_s[-1])
        facts = Uploaded(len(shown), packed.net_bytes, packed.gross_bytes, newest_s, host_seconds)
        return Reply(facts, payload=packed.payload)

    def sample(self, sampling: Sampling) -> Reply:
        """Return the sampled frames without encoding and without truth, for a learner on the device."""
        frames = self._sampled(sampling.times_s)
        kept = replace(frames, labels=None, boxes=None, classes=None)
        return Reply(Uploaded(len(kept), 0, 0, float(kept.times_s[-1]), 0.0), payload=kept)

    def detect_boundary(self, times_s: Sequence[float]) -> Reply:
        """Return whether the newest frames are of another domain than those before."""
        statistics = image_statistics(self._stream().at(np.asarray(times_s, dtype=np.float64)).images)
        ended = [self._boundaries.add(one) for one in statistics]
        return Reply(any(ended))

    def sample_with_truth(self, times_s: Sequence[float]) -> Reply:
        """Return frames with their truth: for oracles only."""
        return Reply(payload=self._sent.pop(tuple(times_s), None) or self._sampled(times_s))

    def _sampled(self, times_s: Sequence[float], scale: int = 1) -> Frames:
        """Draw frames; those of the student's size are kept until their truth is requested, or two others are."""
        frames = self._stream(scale).at(np.asarray(times_s, dtype=np.float64))
        if scale == 1:  # the next samples may be requested before the truth of these
            self._sent = dict([*self._sent.items(), (tuple(times_s), frames)][-2:])
        return frames
