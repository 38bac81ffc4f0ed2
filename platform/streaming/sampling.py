"""The choice of frames from an interval: evenly spaced, the newest included."""

from __future__ import annotations

import math

import numpy as np

from driftlab.platform.streaming.base import StreamFacts


def choose_times(start_s: float, stop_s: float, *, fps: float, rate_fps: float) -> tuple[float, ...]:
    """Choose about rate x interval of the frames shown in [start, stop), ending with the newest."""
    first = math.ceil(start_s * fps - 1e-9)
    count = math.ceil(stop_s * fps - 1e-9) - first
    if count <= 0:
        return ()
    chosen = count if rate_fps >= fps else max(1, round(count * rate_fps / fps))
    index = np.rint(np.linspace(-1, count - 1, chosen + 1)).astype(int)[1:]
    return tuple(float((first + i) / fps) for i in index)


def newest_s(now_s: float, session: StreamFacts) -> float:
    """Return the start of the frame at a time; a time that rounding moved to the stream's end gives the last frame."""
    last = math.ceil(session.duration_s * session.fps - 1e-9) - 1
    return min(math.floor(now_s * session.fps + 1e-9), last) / session.fps
