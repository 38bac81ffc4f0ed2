"""Interface of the streaming family: which samples and updates cross the link, and when."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from driftlab.errors import RunError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Stored, Trained

Stamp = Literal["capture", "receipt"]  # the time of a sample for the server


@dataclass(frozen=True)
class StreamFacts:
    """The properties of a session that a streaming member may use in its plans."""

    fps: float
    duration_s: float


@dataclass(frozen=True)
class Seen:
    """A device's observations since the last plan; None where it has none."""

    frames: int = 0  # predicted frames
    entropy: float | None = None  # mean entropy of these predictions, as a share of the maximum
    distance: float | None = None  # distance of their features from those after the last training of the network
    domain: int | None = None  # of the newest frame, where the device has domain labels
    state: Any = None  # `Sampling.state` of the device's last plan; None before the first


@dataclass(frozen=True)
class Sampling:
    """The frames to sample next, and the time at which the buffer is sent."""

    times_s: tuple[float, ...]
    send_s: float
    next_s: float | None = None  # time of the next plan; None means as soon as this buffer is sent
    codec: str = "jpeg"  # a codec of streaming/wire/samples.py
    rate_fps: float | None = None  # sampling rate, if the member has one
    scale: int = 1  # factor by which frames are sent larger than the student's input, in both directions
    stamp: Stamp = "capture"
    state: Any = None  # stays on the device, as `Seen.state` of its next plan


@dataclass(frozen=True)
class Wire:
    """The encoding of an update (streaming/wire/delta.py)."""

    values: Literal["fp32", "fp16", "bf16", "int8", "int4"] = "fp16"
    mask: Literal["raw", "gzip", "gaps", "rice", "runs"] = "rice"
    feedback: bool = False  # whether rounding errors are added to the next update


@dataclass(frozen=True)
class DownlinkPlan:
    """The server's reaction to an upload; without a phase it only stores the samples."""

    state: Any
    phase: Phase | None
    oldest_s: float = float("-inf")  # the learner drops samples that are older
    dense: bool = False  # send all weights instead of the changed ones
    wire: Wire = Wire()
    rate_fps: float | None = None  # new sampling rate of the device, if the member sets one
    interval_s: float | None = None  # new interval between uploads, if the member sets one


def check_sampling(sampling: Sampling, now_s: float, planner: str, *, ahead: bool = False) -> None:
    """Raise RunError if a plan goes back in time, never ends, or samples frames after it is sent.

    The plan of a bound (`ahead`) may sample frames that follow.
    """
    send_s, again_s = sampling.send_s, sampling.send_s if sampling.next_s is None else sampling.next_s
    planned = f"{planner} planned at {now_s:g} s"
    if not (math.isfinite(send_s) and send_s >= now_s):
        raise RunError(f"{planned} to send at {send_s:g} s: send_s must be finite and at least the time of the plan")
    if not (math.isfinite(again_s) and again_s >= send_s and again_s > now_s):
        raise RunError(
            f"{planned} to send at {send_s:g} s and to plan again at {again_s:g} s, which would never end: next_s must "
            "be finite, at least send_s and after the time of the plan"
        )
    latest_s = math.inf if ahead else send_s + ROUNDING_S
    for time_s in sampling.times_s:
        if not (math.isfinite(time_s) and 0 <= time_s <= latest_s):
            raise RunError(
                f"{planned} to send the frame of {time_s:g} s at {send_s:g} s: times_s must be finite, at least 0, and "
                "at most send_s"
            )


def check_plan(plan: DownlinkPlan, now_s: float, planner: str) -> None:
    """Raise RunError for a plan that drops later samples, or has an impossible rate or interval."""
    if not plan.oldest_s <= now_s:
        raise RunError(
            f"{planner} planned at {now_s:g} s to drop samples older than {plan.oldest_s:g} s: oldest_s must be at "
            "most the time of the plan"
        )
    for name, value in (("rate_fps", plan.rate_fps), ("interval_s", plan.interval_s)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise RunError(f"{planner} planned at {now_s:g} s {name} = {value:g}: it must be finite and at least 0")


ROUNDING_S = 1e-9  # of the times of frames
ROUNDING = 1e-4  # of the numbers of a state that came over a link
PLAN_BYTES = 16  # size of a new plan without an update
RESYNC_BYTES = 16  # size of a device's request for all weights


class Streaming(ABC):
    """Base of the family. A member is a frozen dataclass, and its plans are pure functions of a state."""

    version: ClassVar[int] = 1  # raise it when results change: cached networks and cells are then recomputed
    feeds_learner: ClassVar[bool]  # whether its samples reach a learner
    needs_labels: ClassVar[bool] = False  # whether its plans use the student's score on teacher labels
    free: ClassVar[bool] = False  # a bound: zero-delay links and servers, and plans may sample later frames
    training_runs: Literal["exclusive", "concurrent"] = (
        "concurrent"  # on the device: training pauses inference, or runs concurrently
    )

    @property
    def uses_statistics(self) -> bool:
        """Return whether its plans use the device's observations."""
        return False

    @property
    def learner_site(self) -> Literal["server", "device"]:
        """Return where the learner is; nothing is sent from a device with a learner."""
        return "server"

    @property
    def label_tracking(self) -> Literal["chained", "direct"] | None:
        """Return how the device warps labels from the server: frame by frame, or directly; None for weights."""
        return None

    def reads_end(self, session: StreamFacts) -> bool:
        """Return whether its plans depend on the end of the session."""
        return False

    @abstractmethod
    def start(self, session: StreamFacts) -> Any:
        """Return the member's state before the first frame."""

    def allows(self, state: Any) -> bool:
        """Return whether the values of a state are within the limits of this member."""
        return True

    @abstractmethod
    def plan_uplink(self, state: Any, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Choose the next frames to sample and send; None ends the uplink permanently.

        `state` is the server's, as of its last plan or update that arrived; `seen.state` is the device's.
        """

    @abstractmethod
    def plan_downlink(self, state: Any, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        """Choose the training phase for a labelled upload, and the update to send back."""

    def learn(self, state: Any, trained: Trained) -> Any:
        """Update the state by the result of a training phase; unchanged by default."""
        return state


def within(value: float, low: float, high: float) -> bool:
    """Return whether a number is in a range, up to the rounding of a state that came over a link."""
    return low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING)


def choose_times(start_s: float, stop_s: float, *, fps: float, rate_fps: float) -> tuple[float, ...]:
    """Choose about rate × interval frames of [start, stop), evenly spaced, the newest included."""
    first = math.ceil(start_s * fps - 1e-9)
    count = math.ceil(stop_s * fps - 1e-9) - first
    if count <= 0:
        return ()
    chosen = count if rate_fps >= fps else max(1, round(count * rate_fps / fps))
    index = np.rint(np.linspace(-1, count - 1, chosen + 1)).astype(int)[1:]
    return tuple(float((first + i) / fps) for i in index)


def newest_s(now_s: float, session: StreamFacts) -> float:
    """Return the capture time of the newest frame, which is the last one from the stream's end on."""
    last = math.ceil(session.duration_s * session.fps - 1e-9) - 1
    return min(math.floor(now_s * session.fps + 1e-9), last) / session.fps
