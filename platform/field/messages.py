"""The bytes between a device and its server: a few bytes of framing before what the lab's codecs made."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from driftlab.errors import WireError
from driftlab.platform.core.records import Uploaded
from driftlab.platform.streaming.base import Sampling

FORMAT = 1  # version of both headers
MOST_SAMPLES = 4096  # frames of one upload
STAMPS = ("capture", "receipt")
KINDS = ("update", "labels", "plan")

# version, number, time of sending, first frame, frames, step between them (0: listed), scale, stamp, the network that
# runs (0: the one that runs first), codec's length
SAMPLES = struct.Struct("<BIfIHHBBBB")
RESULT = struct.Struct("<BIBIBI")  # version, number, kind, captured frame, bytes of the plan, bytes of the payload
PLAN_DIGITS = 5  # of a rate or an interval: enough to plan by

ResultKind = Literal["update", "labels", "plan"]


@dataclass(frozen=True)
class SampleMessage:
    """An upload: which frames it carries, when it was sent, and the codec's bytes."""

    number: int
    sent_s: float  # by the device's clock
    sampling: Sampling
    payload: bytes
    runs: int | None = None  # the network of its family that the device runs, where a scheduler chose one

    @property
    def facts(self) -> Uploaded:
        """Return what the device's node said of it, as far as a server needs it."""
        times_s = self.sampling.times_s
        return Uploaded(len(times_s), len(self.payload), len(self.payload), times_s[-1], 0.0)

    def encode(self, fps: float) -> bytes:
        """Write the header, then the payload; frames are given by their numbers."""
        frames = np.rint(np.array(self.sampling.times_s) * fps).astype(np.int64)
        codec, stamp = self.sampling.codec.encode(), STAMPS.index(self.sampling.stamp)
        steps = np.diff(frames)
        if not len(frames) or (steps < 1).any() or (steps >= 2**16).any() or len(frames) > MOST_SAMPLES:
            raise WireError(f"an upload carries 1 to {MOST_SAMPLES} frames in order of time, not {len(frames)}")
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        listed = b"" if step else steps.astype("<u2").tobytes()
        runs = 0 if self.runs is None else self.runs + 1
        what = (int(frames[0]), len(frames), step, self.sampling.scale, stamp, runs, len(codec))
        return SAMPLES.pack(FORMAT, self.number, self.sent_s, *what) + codec + listed + self.payload


def decode_samples(body: bytes, fps: float) -> SampleMessage:
    """Read an upload; refuse bytes that are none."""
    if len(body) < SAMPLES.size:
        raise WireError(f"torn: {len(body)} bytes hold no upload")
    version, number, sent_s, first, count, step, scale, stamp, runs, length = SAMPLES.unpack_from(body)
    start = SAMPLES.size + length
    stop = start + (0 if step else 2 * (count - 1))
    sound = version == FORMAT and 1 <= count <= MOST_SAMPLES and stamp < len(STAMPS) and np.isfinite(sent_s)
    if not sound or not 1 <= scale <= 8 or stop > len(body):
        raise WireError(f"an upload of version {version} with {count} frames cannot be read; this reads {FORMAT}")
    listed = np.frombuffer(body[start:stop], dtype="<u2").astype(np.int64)
    steps = np.full(count - 1, step) if step else listed
    frames = first + np.concatenate([[0], np.cumsum(steps)])
    if (steps < 1).any():
        raise WireError("the frames of an upload are not in order of time")
    try:
        codec = body[SAMPLES.size : start].decode("ascii")
    except UnicodeDecodeError as error:
        raise WireError("the codec of an upload has no name") from error
    times_s = tuple(float(frame / fps) for frame in frames)
    sampling = Sampling(times_s, sent_s, codec=codec, scale=scale, stamp=STAMPS[stamp])  # type: ignore[arg-type]
    return SampleMessage(number, sent_s, sampling, body[stop:], runs - 1 if runs else None)


@dataclass(frozen=True)
class ResultMessage:
    """What a training round sends back: an update, labels, or a plan alone; each carries the member's new state."""

    number: int
    kind: ResultKind
    plan: bytes  # the streaming member's state, see `dump_state`
    payload: bytes
    captured_s: float = 0.0  # of labels

    def encode(self, fps: float) -> bytes:
        """Write the header, the plan and the payload."""
        kind, frame = KINDS.index(self.kind), round(self.captured_s * fps)
        head = (FORMAT, self.number, kind, frame, len(self.plan), len(self.payload))
        return RESULT.pack(*head) + self.plan + self.payload


def decode_results(body: bytes, fps: float) -> Iterator[ResultMessage]:
    """Read the messages of one reply; refuse a torn one."""
    start = 0
    while start < len(body):
        if start + RESULT.size > len(body):
            raise WireError(f"torn: {len(body) - start} bytes hold no message")
        version, number, kind, frame, planned, size = RESULT.unpack_from(body, start)
        middle = start + RESULT.size + planned
        stop = middle + size
        if version != FORMAT or kind >= len(KINDS) or stop > len(body):
            raise WireError(f"a message of version {version} cannot be read; this reads {FORMAT}")
        plan, payload = body[start + RESULT.size : middle], body[middle:stop]
        yield ResultMessage(number, KINDS[kind], plan, payload, frame / fps)  # type: ignore[arg-type]
        start = stop


def dump_state(state: Any) -> bytes:
    """Write a streaming member's state: the fields of a record, or a plain value."""
    plain = dataclasses.astuple(state) if dataclasses.is_dataclass(state) and not isinstance(state, type) else state
    return json.dumps(_short(plain), separators=(",", ":")).encode()


def _short(plain: Any) -> Any:
    """Round what a plan does not need to the last bit."""
    if isinstance(plain, float):
        rounded = float(f"{plain:.{PLAN_DIGITS}g}")
        return int(rounded) if rounded.is_integer() else rounded
    return [_short(value) for value in plain] if isinstance(plain, list | tuple) else plain


def load_state(start: Any, data: bytes) -> Any:
    """Read a state; the member's first state says of which kind it is."""
    try:
        plain = json.loads(data)
        if not dataclasses.is_dataclass(start):
            return plain
        fields = [tuple(value) if isinstance(value, list) else value for value in plain]
        kind: Any = type(start)
        return kind(*fields)
    except (ValueError, TypeError) as error:
        raise WireError(f"a plan of {len(data)} bytes cannot be read: {error}") from error
