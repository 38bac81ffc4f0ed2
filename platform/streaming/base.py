"""What crosses the link, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Stored, Trained

Stamp = Literal["capture", "receipt"]  # the time by which the server files a sample


@dataclass(frozen=True)
class StreamFacts:
    """What a streaming member may know of the session it plans for."""

    fps: float
    duration_s: float


@dataclass(frozen=True)
class Seen:
    """What a device has noticed since the last plan; None where it does not look, or cannot tell."""

    frames: int = 0  # that the application answered
    entropy: float | None = None  # of these answers at the mean, as a share of the largest there can be
    distance: float | None = None  # of their features from those of the frames after the network last learned
    domain: int | None = None  # of the newest frame, where the experiment tells domains


@dataclass(frozen=True)
class Sampling:
    """Which frames to send next, and when the buffer leaves the device."""

    times_s: tuple[float, ...]
    send_s: float
    next_s: float | None = None  # when to plan again; None means as soon as this buffer has left
    codec: str = "jpeg"  # a name of streaming/codec.py
    rate_fps: float | None = None  # how often frames are sampled, where the member has such a rate
    scale: int = 1  # how many times larger than the student's input they are sent, in both directions
    stamp: Stamp = "capture"


@dataclass(frozen=True)
class Wire:
    """How an update is written (models/delta.py)."""

    values: Literal["fp32", "fp16", "bf16", "int8", "int4"] = "fp16"
    mask: Literal["raw", "gzip", "gaps", "rice"] = "rice"
    feedback: bool = False  # whether what the values lost goes along with the next update


@dataclass(frozen=True)
class DownlinkPlan:
    """What the server does with an upload; no phase means that it only stores it."""

    state: Any
    phase: Phase | None
    oldest_s: float = float("-inf")  # samples captured before this leave the learner's buffer
    dense: bool = False  # send every weight rather than those that changed
    wire: Wire = Wire()
    rate_fps: float | None = None  # what the device is told, where the member sets it: how often to sample
    interval_s: float | None = None  # and how often to send


PLAN_BYTES = 16  # the message that brings a new plan where no update goes along
RESYNC_BYTES = 16  # and the one by which a device asks for every weight


class Streaming(ABC):
    """Base of the family: two plans, pure functions of (state, facts); a member is a frozen dataclass."""

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    feeds_learner: ClassVar[bool]  # whether its samples ever reach a learner
    place: ClassVar[Literal["server", "device"]] = "server"  # where that learner stands; on a device nothing crosses
    returns: ClassVar[Literal["weights", "labels"]] = "weights"  # what comes back
    needs_labels: ClassVar[bool] = False  # whether its plans compare the student with a teacher
    free: ClassVar[bool] = False  # a bound: links and servers take no time
    learns: Literal["instead", "beside"] = "beside"  # a phase on the device: of answering, or on a share beside it

    @property
    def notices(self) -> bool:
        """Whether its plans depend on what the device has noticed, which then is found out."""
        return False

    @property
    def chained(self) -> bool:
        """Whether a device carries labels along frame by frame; else straight from the frame that was labelled."""
        return True

    def reads_end(self, session: StreamFacts) -> bool:
        """Tell whether it plans by when the session ends, so that a longer one would begin otherwise."""
        return False

    @abstractmethod
    def start(self, session: StreamFacts) -> Any:
        """Return the state before the first frame."""

    @abstractmethod
    def plan_uplink(self, state: Any, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Choose what to sample and send next; None ends the uplink for good."""

    @abstractmethod
    def plan_downlink(self, state: Any, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Choose what to do with an upload that the teacher has labelled, and what to send back."""

    def learn(self, state: Any, trained: Trained) -> Any:
        """Take what a training phase found into the state; most members have no use for it."""
        return state
