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
from driftlab.platform.streaming.codec import pack, unpack
from driftlab.platform.world.damage import Damage


class Device:
    """Sees every frame, sends those it is told to send."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._stream: Stream | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        """Leave the open stream behind: whoever restores this device opens its own."""
        return {"_spec": self._spec, "_stream": None}

    @property
    def stream(self) -> Stream:
        if self._stream is None:
            spec = self._spec
            self._stream = open_stream(
                spec.workload,
                seed=spec.seed,
                height=spec.height,
                width=spec.width,
                fps=spec.fps,
                duration_s=spec.duration_s,
                **dict(spec.params),
            )
        return self._stream

    def capture(self, start_s: float, stop_s: float) -> Reply:
        """See the frames of one window."""
        frames = self.stream.at(frame_times(self.stream, start_s, stop_s))
        return Reply(Captured(len(frames), self.stream.has_truth), payload=frames)

    def upload(self, sampling: Sampling, damage: Damage | None = None) -> Reply:
        """Pack the sampled frames; the payload is what the server decodes, and the truth for an oracle."""
        frames = self.stream.at(np.asarray(sampling.times_s, dtype=np.float64))
        started = time.perf_counter()
        packed = pack(frames.images, sampling.codec)
        facts = Uploaded(
            frames=len(frames),
            bytes=packed.net_bytes,
            gross_bytes=packed.gross_bytes,
            raw_bytes=frames.images.nbytes,
            newest_s=float(frames.times_s[-1]),
            host_seconds=time.perf_counter() - started,
        )
        if damage is None:
            return Reply(facts, payload=replace(frames, images=packed.frames))
        try:
            images = unpack(damage.of(packed.payload), frames.images.shape, sampling.codec)
        except WireError as error:
            return Reply(replace(facts, refused=str(error)))
        return Reply(facts, payload=replace(frames, images=images))
