"""Messages between a device and its server: a short header, then the bytes of the simulator's codecs."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from pydantic import TypeAdapter

from driftlab.errors import WireError, first_line, shortened
from driftlab.platform.core.records import Uploaded
from driftlab.platform.streaming.base import Sampling, StreamFacts, Streaming

FORMAT = 3  # version of the headers and routes
REPORT_INTERVAL_S = 5.0  # between two reports of a device
MAX_SAMPLES = 4096  # frames of one upload
STAMPS = ("capture", "receipt")

# version, number, time of sending, first frame, count of frames, step between frames (0: steps are listed), scale,
# stamp, network that runs + 1 (0: the initial one), length of the codec's name
SAMPLES = struct.Struct("<BIfIHHBBBB")
RESULT = struct.Struct("<BIBIBI")  # version, number, kind, captured frame, bytes of the plan, bytes of the payload
MAX_PLAN_BYTES = 64 * 2**10
MAX_REPORTED, MAX_REPORT_BYTES = 1e9, 200  # of a value in a report, and of a report
PLAN_DIGITS = 5  # significant digits of a rate or an interval

ResultKind = Literal["update", "labels", "plan"]
KINDS = get_args(ResultKind)


def check_format(version: object) -> None:
    """Refuse the messages of a driftlab with another version of the protocol."""
    if version != FORMAT:
        raise WireError(
            f"the other side uses version {version} of the protocol and this program version {FORMAT}; "
            "use the same driftlab on the devices and the server"
        )


@dataclass(frozen=True)
class SampleMessage:
    """An upload: its frames, the time of sending, and the bytes of the codec."""

    number: int
    sent_s: float  # by the device's clock
    sampling: Sampling
    payload: bytes
    runs: int | None = None  # number of the network that the device runs, if its scheduler selected one

    @property
    def facts(self) -> Uploaded:
        """Return the facts of the upload that a server uses."""
        times_s = self.sampling.times_s
        return Uploaded(len(times_s), len(self.payload), len(self.payload), times_s[-1], 0.0)

    def encode(self, fps: float) -> bytes:
        """Return header and payload; frames are encoded as numbers at the rate `fps`."""
        frames = np.rint(np.array(self.sampling.times_s) * fps).astype(np.int64)
        codec, stamp = self.sampling.codec.encode(), STAMPS.index(self.sampling.stamp)
        steps = np.diff(frames)
        if not len(frames) or (steps < 1).any() or (steps >= 2**16).any() or len(frames) > MAX_SAMPLES:
            raise WireError(f"an upload of {len(frames)} frames: it needs 1 to {MAX_SAMPLES} frames in order of time")
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        listed = b"" if step else steps.astype("<u2").tobytes()
        runs = 0 if self.runs is None else self.runs + 1
        contents = (int(frames[0]), len(frames), step, self.sampling.scale, stamp, runs, len(codec))
        return SAMPLES.pack(FORMAT, self.number, self.sent_s, *contents) + codec + listed + self.payload


def decode_samples(body: bytes, fps: float) -> SampleMessage:
    """Return the upload in the body of a request; raise WireError for any other bytes."""
    if len(body) < SAMPLES.size:
        raise WireError(f"incomplete: {len(body)} bytes are too few for an upload")
    version, number, sent_s, first, count, step, scale, stamp, runs, length = SAMPLES.unpack_from(body)
    start = SAMPLES.size + length
    stop = start + (0 if step else 2 * (count - 1))
    check_format(version)
    valid = 1 <= count <= MAX_SAMPLES and stamp < len(STAMPS) and np.isfinite(sent_s)
    if not valid or not 1 <= scale <= 8 or stop > len(body):
        raise WireError(f"invalid upload with {count} frames")
    listed = np.frombuffer(body[start:stop], dtype="<u2").astype(np.int64)
    steps = np.full(count - 1, step) if step else listed
    frames = first + np.concatenate([[0], np.cumsum(steps)])
    if (steps < 1).any():
        raise WireError("the frames of an upload are not in order of time")
    try:
        codec = body[SAMPLES.size : start].decode("ascii")
    except UnicodeDecodeError as error:
        raise WireError("the codec's name in an upload is not ASCII") from error
    times_s = tuple(float(frame / fps) for frame in frames)
    sampling = Sampling(times_s, sent_s, codec=codec, scale=scale, stamp=STAMPS[stamp])  # type: ignore[arg-type]
    return SampleMessage(number, sent_s, sampling, body[stop:], runs - 1 if runs else None)


@dataclass(frozen=True)
class ResultMessage:
    """The result of a training round: an update or labels, with the streaming member's new state."""

    number: int
    kind: ResultKind
    plan: bytes  # the streaming member's state, see `dump_state`
    payload: bytes
    captured_s: float = 0.0  # of labels

    def encode(self, fps: float) -> bytes:
        """Return header, plan and payload."""
        kind, frame = KINDS.index(self.kind), round(self.captured_s * fps)
        head = (FORMAT, self.number, kind, frame, len(self.plan), len(self.payload))
        return RESULT.pack(*head) + self.plan + self.payload


def decode_results(body: bytes, fps: float) -> Iterator[ResultMessage]:
    """Yield the results in a reply; raise WireError at an incomplete or foreign one."""
    start = 0
    while start < len(body):
        if start + RESULT.size > len(body):
            raise WireError(f"incomplete: {len(body) - start} bytes are too few for a message")
        version, number, kind, frame, plan_size, size = RESULT.unpack_from(body, start)
        middle = start + RESULT.size + plan_size
        stop = middle + size
        check_format(version)
        if kind >= len(KINDS) or stop > len(body):
            raise WireError(f"invalid message of kind {kind} with {size} bytes")
        plan, payload = body[start + RESULT.size : middle], body[middle:stop]
        yield ResultMessage(number, KINDS[kind], plan, payload, frame / fps)
        start = stop


@dataclass(frozen=True)
class DeviceStatus:
    """A report of a device to the live page; None: not measured."""

    time_s: float
    fps: float  # predicted frames per second
    latency_ms: float | None  # median from a frame to its prediction
    score: float | None  # mean live score since the report before

    def encode(self) -> str:
        """Return the report as a JSON list."""
        return json.dumps(_rounded(dataclasses.astuple(self)), separators=(",", ":"))


def decode_status(text: str | bytes) -> DeviceStatus:
    """Return the report in a message; raise WireError for anything else."""
    try:
        values = json.loads(text) if len(text) <= MAX_REPORT_BYTES else ()
        numbers = [None if value is None else float(value) for value in values]
        time_s, fps, latency_ms, score = numbers
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"invalid report of {len(text)} bytes") from error
    if time_s is None or fps is None or not all(0 <= one < MAX_REPORTED for one in numbers if one is not None):
        raise WireError("a report lacks its time or its frame rate, or a value is out of range")
    return DeviceStatus(time_s, fps, latency_ms, score)


def dump_state(state: Any) -> bytes:
    """Return the state of a streaming member as JSON: the fields of a dataclass, or a plain value."""
    plain = dataclasses.astuple(state) if dataclasses.is_dataclass(state) and not isinstance(state, type) else state
    return json.dumps(_rounded(plain), separators=(",", ":")).encode()


def _rounded(plain: Any) -> Any:
    """Round all numbers to `PLAN_DIGITS` digits: plans are sent often and need no more."""
    if isinstance(plain, float):
        rounded = float(f"{plain:.{PLAN_DIGITS}g}")
        return int(rounded) if rounded.is_integer() else rounded
    return [_rounded(value) for value in plain] if isinstance(plain, list | tuple) else plain


def load_state(member: Streaming, facts: StreamFacts, data: bytes) -> Any:
    """Return the state of a streaming member; raise WireError if its type or range is invalid."""
    start = member.start(facts)
    try:
        if len(data) > MAX_PLAN_BYTES:
            raise ValueError(f"at most {MAX_PLAN_BYTES} are allowed")
        plain = json.loads(data, parse_constant=_refuse_constant)
        if dataclasses.is_dataclass(start) and not isinstance(start, type):
            names = [one.name for one in dataclasses.fields(start)]
            plain = dict(zip(names, plain, strict=True))
        state = TypeAdapter(type(start)).validate_json(json.dumps(plain), strict=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"invalid plan of {len(data)} bytes: {first_line(error)}") from error
    if not member.allows(state):
        raise WireError(f"a plan is outside the limits of the streaming member: {shortened(data.decode())}")
    return state


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
