"""Who gets the machine, and which network each application runs on its share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from driftlab.platform.core.records import Need, Share, Variant

Reason = Literal["window", "offer", "end", "come", "go", "load"]
ALWAYS: frozenset[Reason] = frozenset({"window", "offer", "end", "come", "go", "load"})


@dataclass(frozen=True)
class Way:
    """One way to learn, and what it takes."""

    name: str
    need: Need
    accuracy: float | None = None  # expected afterwards, a fraction; None: it was not tried out


@dataclass(frozen=True)
class Learning:
    """What an application wants to learn, or is learning."""

    state: Literal["offered", "running"]
    ways: tuple[Way, ...] = ()  # to choose from, as long as it is offered
    left: Need = field(default_factory=Need)  # of what is running
    now: float | None = None  # accuracy of the network as it answers, a fraction; None: not known
    then: float | None = None  # and of the network that has learned


@dataclass(frozen=True)
class Demand:
    """What one application asks for, and what it could run."""

    app: str
    fps: float
    variants: tuple[Variant, ...]  # from the smallest on; one where there is no choice
    running: int | None = None  # which of them is in memory; None: the application has just come
    accuracy_goal: float | None = None  # at least; None: it asks for none
    latency_goal_s: float | None = None  # per frame, at most
    priority: float = 1.0  # how many times as much its cost counts
    nested: bool = False  # a larger variant holds the smaller ones: a switch moves only the difference
    learning: Learning | None = None  # what it wants to learn beside answering; None: nothing
    observed: float | None = None  # accuracy of its newest answers, a fraction; None: not observed
    observed_by: Literal["teacher", "confidence", "oracle"] | None = None


@dataclass(frozen=True)
class Reading:
    """What the device has sensed of its own load at a time."""

    time_s: float
    cpu: float  # share in use by programs that are not the lab's
    memory_bytes: int  # free


@dataclass(frozen=True)
class Window:
    """What a scheduler may know when it shares a device out."""

    start_s: float
    window_s: float  # until the next regular window begins
    memory_bytes: int  # for all applications together
    demands: tuple[Demand, ...]  # in the order in which the applications came
    state: Any = None  # what the last allocation on this device handed on
    reason: Reason = "window"  # what there is to share has changed, or a window begins
    load: tuple[Reading, ...] = ()  # sensed so far, in order of time


@dataclass(frozen=True)
class Grant:
    """What one application gets until the machine is shared out anew."""

    answer: Share  # of the device's compute; 0: the application waits
    learn: Share | None = None  # None: a running phase takes half of `answer`
    way: int | None = 0  # which of the offered ways to learn; None: do not learn now
    variant: int | None = None  # which network it runs; None: it waits, or scaling chooses
    beside: str = ""  # name of the group whose works interleave on the machine's parts
    note: str = ""  # for people: why it waits, which goal cannot be met


@dataclass(frozen=True)
class Allocation:
    """What each application gets, in the order of the demands."""

    grants: tuple[Grant, ...]
    state: Any = None  # for the next time


@dataclass(frozen=True)
class Wants:
    """When a scheduler is asked, and what is found out for it before, which is paid on the machine."""

    reasons: frozenset[Reason] = ALWAYS
    trials: bool = False  # every offered way to learn is tried out on a part of the samples


EACH_WINDOW = Wants(frozenset({"window"}))  # as a member that plans from window to window has it


class Scheduling(ABC):
    """Base of the family; a member is a frozen dataclass and its verb a pure function."""

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    wants: ClassVar[Wants] = Wants()

    @abstractmethod
    def allocate(self, window: Window) -> Allocation:
        """Share the machine among the window's demands."""
