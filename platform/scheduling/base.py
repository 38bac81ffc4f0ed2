"""The scheduling family: the allocation of the machine, and the network of each application."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from driftlab.platform.core.records import Need, Reading, Share, Variant

Reason = Literal["window", "offer", "end", "come", "go", "load", "again"]
ObservedBy = Literal["teacher", "confidence", "oracle"]
ALWAYS: frozenset[Reason] = frozenset({"window", "offer", "end", "come", "go", "load", "again"})
USUAL = ALWAYS - {"load"}  # twice a second is too often for most


@dataclass(frozen=True)
class Way:
    """A way to learn, and its need."""

    name: str
    need: Need
    accuracy: float | None = None  # expected afterwards, a fraction; None: not tried out
    before: float | None = None  # accuracy of its network until it is done; None: that of the running network
    size: float | None = None  # of the network that it trains, as a share of the whole one; None: it has one size
    tried: float = 1.0  # share of its steps after which `accuracy` was measured
    variant: int | None = None  # index of the network that it trains, and that runs from then on; None: the running one


@dataclass(frozen=True)
class Learning:
    """The training that an application offers or runs."""

    state: Literal["offered", "running"]
    ways: tuple[Way, ...] = ()  # to choose from while it is offered
    left: Need = field(default_factory=Need)  # of the running phase
    way: str | None = None  # name of the way that runs; None: nothing is chosen yet, it labels or tries ways out
    now: float | None = None  # current accuracy of the network, a fraction; None: unknown
    then: float | None = None  # expected accuracy after training


@dataclass(frozen=True)
class Demand:
    """The requirements of one application, and the networks that it can run."""

    app: str
    fps: float
    variants: tuple[Variant, ...]  # from the smallest on; one if there is no choice
    running: int | None = None  # the network in memory; None: the application has just arrived
    accuracy_goal: float | None = None  # minimum; None: no goal
    latency_goal_s: float | None = None  # per frame, at most
    priority: float = 1.0  # weight of its cost
    nested: bool = False  # a larger variant contains the smaller ones: a switch moves only the difference
    learning: Learning | None = None  # training beside inference; None: none
    energy_goal_j: float | None = None  # per frame, at most
    observed: float | None = None  # accuracy of its newest predictions, a fraction; None: not observed
    observed_by: ObservedBy | None = None
    observed_s: float | None = None  # from when on these predictions are


@dataclass(frozen=True)
class Window:
    """The inputs of a scheduler."""

    start_s: float
    window_s: float  # until the next regular window
    memory_bytes: int  # for all applications together
    demands: tuple[Demand, ...]  # in order of arrival
    state: Any = None  # returned by the last allocation on this device
    reason: Reason = "window"  # why the scheduler is called
    load: tuple[Reading, ...] = ()  # sensed so far, in order of time


@dataclass(frozen=True)
class Grant:
    """The allocation of one application until the next call."""

    answer: Share  # of the device's compute; 0: the application waits
    learn: Share | None = None  # None: a running phase takes half of `answer`
    way: int | None = 0  # index of the chosen way to learn; None: do not learn now
    tries: tuple[int, ...] = ()  # ways to try out before one is chosen: they are offered again
    variant: int | None = None  # index of the network that it runs; None: it waits, or scaling chooses
    beside: str = ""  # name of the group whose tasks interleave on the machine's parts
    note: str = ""  # for people: why it waits, or which goal cannot be met


@dataclass(frozen=True)
class Allocation:
    """The allocation of each application, in the order of the demands."""

    grants: tuple[Grant, ...]
    state: Any = None  # for the next call
    again_s: float | None = None  # time after which the member is called again, unless it is called before


@dataclass(frozen=True)
class Wants:
    """When a scheduler is called, and the trials that it needs beforehand, which cost machine time."""

    reasons: frozenset[Reason] = USUAL
    trials: bool = False  # every offered way to learn is tried on a part of the samples
    choosy: bool = False  # it names the ways to be tried out when they are offered
    part: float = 1.0  # share of a way's steps that a trial takes, at least one
    recall: float | None = None  # fall from which on a learner scores stored networks, and goes on with a better one
    observed: bool = False  # how accurate each application is now, as far as its device can know
    server: bool = False  # it also shares the GPUs of a server that learns; else first come, first served
    together: bool = False  # offers wait until no application of the device prepares ways any more


EACH_WINDOW = Wants(frozenset({"window"}))  # of a member that plans per window


class Scheduling(ABC):
    """Base of the family. A member is a frozen dataclass and its verb a pure function."""

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    wants: ClassVar[Wants] = Wants()

    @property
    def asks(self) -> Wants:
        """Return what the member wants with its parameters."""
        return self.wants

    @abstractmethod
    def allocate(self, window: Window) -> Allocation:
        """Allocate the machine to the window's demands."""
