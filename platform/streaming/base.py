"""The streaming family: what is sent over the link, and when."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Stored, Trained

Stamp = Literal["capture", "receipt"]  # the time of a sample for the server


@dataclass(frozen=True)
class StreamFacts:
    """The properties of a session that a streaming member may use."""

    fps: float
    duration_s: float


@dataclass(frozen=True)
class Seen:
    """A device's observations since the last plan; None where it does not observe, or cannot tell."""

    frames: int = 0  # predicted frames
    entropy: float | None = None  # mean entropy of these predictions, as a share of the maximum
    distance: float | None = None  # distance of their features from those after the last training of the network
    domain: int | None = None  # of the newest frame, where the experiment tells domains


@dataclass(frozen=True)
class Sampling:
    """The frames to sample next, and the time at which the buffer is sent."""

    times_s: tuple[float, ...]
    send_s: float
    next_s: float | None = None  # time of the next plan; None means as soon as this buffer is sent
    codec: str = "jpeg"  # a name of streaming/wire/samples.py
    rate_fps: float | None = None  # sampling rate, where the member has one
    scale: int = 1  # factor by which frames are sent larger than the student's input, in both directions
    stamp: Stamp = "capture"


@dataclass(frozen=True)
class Wire:
    """The encoding of an update (streaming/wire/delta.py)."""

    values: Literal["fp32", "fp16", "bf16", "int8", "int4"] = "fp16"
    mask: Literal["raw", "gzip", "gaps", "rice", "runs"] = "rice"
    feedback: bool = False  # whether rounding errors are added to the next update


@dataclass(frozen=True)
class DownlinkPlan:
    """The server's actions on an upload; without a phase it only stores the samples."""

    state: Any
    phase: Phase | None
    oldest_s: float = float("-inf")  # older samples leave the learner's buffer
    dense: bool = False  # send every weight rather than the changed ones
    wire: Wire = Wire()
    rate_fps: float | None = None  # sampling rate sent to the device, where the member sets it
    interval_s: float | None = None  # the same for the interval of uploads


PLAN_BYTES = 16  # a new plan without an update
RESYNC_BYTES = 16  # a device's request for every weight


class Streaming(ABC):
    """Base of the family: two plans, pure functions of (state, facts). A member is a frozen dataclass."""

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    feeds_learner: ClassVar[bool]  # whether its samples ever reach a learner
    place: ClassVar[Literal["server", "device"]] = "server"  # where that learner stands; on a device nothing crosses
    returns: ClassVar[Literal["weights", "labels"]] = "weights"  # what comes back
    needs_labels: ClassVar[bool] = False  # whether its plans compare the student with a teacher
    free: ClassVar[bool] = False  # a bound: links and servers take no time
    learns: Literal["instead", "beside"] = "beside"  # on the device: instead of inference, or on a share beside it

    @property
    def notices(self) -> bool:
        """Tell whether its plans use the device's observations."""
        return False

    @property
    def chained(self) -> bool:
        """Tell whether a device warps labels from frame to frame, rather than directly from the labelled frame."""
        return True

    def reads_end(self, session: StreamFacts) -> bool:
        """Tell whether it plans by when the session ends, so that a longer one would begin otherwise."""
        return False

    @abstractmethod
    def start(self, session: StreamFacts) -> Any:
        """Return the state before the first frame."""

    @abstractmethod
    def plan_uplink(self, state: Any, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Choose the next frames to sample and send; None ends the uplink for good."""

    @abstractmethod
    def plan_downlink(self, state: Any, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Choose what to do with a labelled upload, and what to send back."""

    def learn(self, state: Any, trained: Trained) -> Any:
        """Update the state by the result of a training phase; by default unchanged."""
        return state


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
