"""A device: a camera in a drifting world, and the radio that sends what was sampled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import Stream, frame_times
from driftlab.errors import WireError
from driftlab.platform.core.records import Captured, Reply, Uploaded
from driftlab.platform.nodes.specs import StreamSpec
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.codec import Images, pack, unpack
from driftlab.platform.world.damage import Damage


class Device:
    """Sees every frame, sends those it is told to send."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._streams: dict[int, Stream] = {}  # by how many times larger than the student's input it is

    def __getstate__(self) -> Mapping[str, Any]:
        """Leave open streams behind: whoever restores this device opens its own."""
        return {"_spec": self._spec, "_streams": {}}

    def _stream(self, scale: int = 1) -> Stream:
        """Open what the camera sees, at the student's size or larger."""
        if scale not in self._streams:
            spec = self._spec
            self._streams[scale] = open_stream(
                spec.workload,
                seed=spec.seed,
                height=spec.height * scale,
                width=spec.width * scale,
                fps=spec.fps,
                duration_s=spec.duration_s,
                **dict(spec.params),
            )
        return self._streams[scale]

    def capture(self, start_s: float, stop_s: float) -> Reply:
        """See the frames of one window."""
        stream = self._stream()
        frames = stream.at(frame_times(stream, start_s, stop_s))
        return Reply(Captured(len(frames), stream.has_truth), payload=frames)

    def upload(self, sampling: Sampling, damage: Damage | None = None) -> Reply:
        """Pack the sampled frames; the payload is what the server decodes, and the truth for an oracle."""
        times_s = np.asarray(sampling.times_s, dtype=np.float64)
        frames = self._stream().at(times_s)
        shown = frames.images if sampling.scale == 1 else self._stream(sampling.scale).at(times_s).images
        started = time.perf_counter()
        packed = pack(shown, sampling.codec)
        facts = Uploaded(
            frames=len(frames),
            bytes=packed.net_bytes,
            gross_bytes=packed.gross_bytes,
            newest_s=float(frames.times_s[-1]),
            host_seconds=time.perf_counter() - started,
        )
        try:
            images = packed.frames if damage is None else unpack(damage.of(packed.payload), shown.shape, sampling.codec)
        except WireError as error:
            return Reply(replace(facts, refused=str(error)))
        return Reply(facts, payload=replace(frames, images=_shrunk(images, sampling.scale)))


def _shrunk(images: Images, scale: int) -> Images:
    """Average the pixels of frames that were sent larger than the student sees them."""
    if scale == 1:
        return images
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height // scale, scale, width // scale, scale, channels)
    return np.asarray(np.rint(blocks.mean(axis=(2, 4))), dtype=np.uint8)
