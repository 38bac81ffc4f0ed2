"""Interface of the scheduling family: the compute share and the network of each application."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from driftlab.errors import RunError
from driftlab.platform.core.records import SHARE_TOLERANCE, LoadReading, Share, TaskCost, Variant

Reason = Literal["window", "offer", "end", "arrival", "departure", "load", "timer"]
ObservedBy = Literal["teacher", "confidence", "oracle"]
ALL_TRIGGERS: frozenset[Reason] = frozenset({"window", "offer", "end", "arrival", "departure", "load", "timer"})
DEFAULT_TRIGGERS = ALL_TRIGGERS - {"load"}  # load readings come twice a second, too often for most members
WINDOW_ONLY: frozenset[Reason] = frozenset({"window"})


@dataclass(frozen=True)
class TrainingConfig:
    """A training configuration: the cost of its phase, and the expected accuracies."""

    name: str
    cost: TaskCost
    accuracy: float | None = None  # expected after training, a fraction; None: no trial yet
    before: float | None = None  # accuracy of its network during training; None: that of the running network
    size: float | None = None  # size of the network that it trains, as a share of the full one; None: a single size
    trial_fraction: float = 1.0  # fraction of its steps after which `accuracy` was measured
    variant: int | None = None  # index of the network that it trains and that runs afterwards; None: the running one

    def __post_init__(self) -> None:
        """Refuse impossible times and sizes."""
        _check_cost(self.name, self.cost)
        if self.size is not None and not 0 < self.size < math.inf:
            raise RunError(f"configuration '{self.name}' has size {self.size:g}: it must be finite and above 0")
        if not 0 < self.trial_fraction <= 1:
            raise RunError(f"configuration '{self.name}' has a trial of {self.trial_fraction:g}: it must be in (0, 1]")


@dataclass(frozen=True)
class TrainingOffer:
    """The training that an application offers or runs."""

    state: Literal["offered", "running"]
    configs: tuple[TrainingConfig, ...] = ()  # the configurations, while it is offered
    left: TaskCost = field(default_factory=TaskCost)  # remaining cost of the running phase
    config: str | None = None  # name of the running configuration; None: none is chosen yet, during labelling or trials
    accuracy_before: float | None = None  # current accuracy of the network, a fraction; None: unknown
    accuracy_after: float | None = None  # expected accuracy after training

    def __post_init__(self) -> None:
        """Refuse impossible times."""
        _check_cost("left", self.left)
        if math.isinf(self.left.isolated_s):
            raise RunError(
                f"configuration '{self.config or 'left'}' never ends: a running phase must have a finite rest"
            )


def _check_cost(name: str, cost: TaskCost) -> None:
    for resource, seconds in cost.seconds.items():
        if not seconds >= 0:
            raise RunError(f"configuration '{name}' takes {seconds:g} s on {resource}: it must take at least 0")
    for unit, amount in (("bytes", cost.memory_bytes), ("J", cost.joules)):
        if not 0 <= amount < math.inf:
            raise RunError(f"configuration '{name}' takes {amount:g} {unit}: it must be finite and at least 0")


@dataclass(frozen=True)
class Demand:
    """The requirements of one application, and the networks that it can run."""

    app: str
    fps: float
    variants: tuple[Variant, ...]  # from the smallest on; one if there is no choice
    running: int | None = None  # index of the network in memory; None: the application has just arrived
    accuracy_goal: float | None = None  # minimum; None: no goal
    latency_goal_s: float | None = None  # per frame, at most
    priority: float = 1.0  # weight of its cost
    nested: bool = False  # a larger variant contains the smaller ones: a switch pages only the difference
    learning: TrainingOffer | None = None  # training in addition to inference; None: none
    energy_goal_j: float | None = None  # per frame, at most
    observed: float | None = None  # accuracy of its newest predictions, a fraction; None: not observed
    observed_by: ObservedBy | None = None
    observed_s: float | None = None  # time of the oldest of these predictions
    changed_s: float | None = None  # start of its domain, where a boundary was detected
    video: bool = False  # whether a frame mostly shows the scene of the one before it

    def __post_init__(self) -> None:
        """Refuse requirements that no member can compare."""
        for name, value in (("fps", self.fps), ("priority", self.priority)):
            if not 0 < value < math.inf:
                raise RunError(f"{name} of {self.app} is {value:g}: it must be finite and above 0")
        goals = (self.accuracy_goal, self.latency_goal_s, self.energy_goal_j)
        if any(goal is not None and not goal >= 0 for goal in goals):
            raise RunError(f"the goals of {self.app} are {goals}: accuracy, seconds and joules must be at least 0")
        if self.observed_s is not None and not math.isfinite(self.observed_s):
            raise RunError(f"observed_s of {self.app} is {self.observed_s:g}: a time must be finite")


@dataclass(frozen=True)
class SchedulerInput:
    """The input of a scheduler at one call."""

    start_s: float
    window_s: float  # until the next regular window
    memory_bytes: int  # of the device, for all applications
    demands: tuple[Demand, ...]  # in order of arrival
    state: Any = None  # of the last allocation on this device
    reason: Reason = "window"  # why the scheduler is called
    load: tuple[LoadReading, ...] = ()  # readings so far, in order of time
    left_s: float | None = None  # until the end of the session, where it is known

    def __post_init__(self) -> None:
        """Refuse a window in which no member can plan."""
        if not 0 < self.window_s < math.inf:
            raise RunError(f"window_s is {self.window_s:g}: a window must have a finite length above 0")
        if not math.isfinite(self.start_s):
            raise RunError(f"start_s is {self.start_s:g}: a time must be finite")
        if self.left_s is not None and not self.left_s >= 0:
            raise RunError(f"left_s is {self.left_s:g}: the rest of a session must be at least 0")
        if self.memory_bytes < 0:
            raise RunError(f"memory_bytes is {self.memory_bytes}: it must be at least 0")


@dataclass(frozen=True)
class Grant:
    """The allocation of one application until the next call."""

    inference_share: Share  # inference share of the processor; 0: the application waits
    training_share: Share | None = None  # training share; None: a running phase receives half of `inference_share`
    config: int | None = 0  # index of the chosen configuration; None: no training now
    trials: tuple[int, ...] = ()  # configurations to try before the choice; they are offered again with results
    variant: int | None = None  # index of the network to run; None: the application waits, or scaling chooses
    interleave_group: str = ""  # name of the group whose tasks interleave on the processor's resources
    note: str = ""  # for readers of the tables: the reason for waiting, or a goal out of reach


@dataclass(frozen=True)
class Allocation:
    """The allocation of each application, in the order of the demands."""

    grants: tuple[Grant, ...]
    state: Any = None  # for the next call
    again_s: float | None = None  # the member is called again after this time, unless it is called earlier


def check_allocation(allocation: Allocation, demands: Sequence[Demand], scheduler: str) -> None:
    """Raise RunError for a missing grant, an impossible share, network or time of the next call."""
    if len(allocation.grants) != len(demands):
        raise RunError(f"{scheduler} gave {len(allocation.grants)} grants to {len(demands)} applications")
    again_s = allocation.again_s
    if again_s is not None and not again_s > 0:
        raise RunError(
            f"{scheduler} requested a call after {again_s:g} s, which would never end: again_s must be above 0"
        )
    for demand, grant in zip(demands, allocation.grants, strict=True):
        for name, share in (("inference_share", grant.inference_share), ("training_share", grant.training_share)):
            for part in share.values() if isinstance(share, Mapping) else (share,):
                if part is not None and not 0 <= part <= 1 + SHARE_TOLERANCE:
                    raise RunError(f"{scheduler} gave {demand.app} {name} = {part:g}: it must be from 0 to 1")
        if grant.variant is not None and grant.variant not in range(len(demand.variants)):
            raise RunError(
                f"{scheduler} gave {demand.app} network {grant.variant}: it has networks 0 to "
                f"{len(demand.variants) - 1}"
            )


class Scheduling(ABC):
    """Base of the family. A member is a frozen dataclass, and `allocate` a pure function."""

    version: ClassVar[int] = 1  # raise it when results change: cached networks and cells are then recomputed
    triggers: ClassVar[frozenset[Reason]] = DEFAULT_TRIGGERS  # reasons for a call
    uses_observed_accuracy: ClassVar[bool] = False  # whether it reads `Demand.observed`, where a device can measure it

    @property
    def uses_estimates(self) -> bool:
        """Return whether offers have estimated accuracies, where the adaptation estimates any."""
        return bool(self.initial_trials(1))

    @property
    def waits_for_all_offers(self) -> bool:
        """Return whether offers wait until no application of the device prepares one."""
        return False

    @property
    def trial_fraction(self) -> float:
        """Return the fraction of a configuration's steps in a trial, which has at least one step."""
        return 1.0

    @property
    def recall_drop(self) -> float | None:
        """Return the drop of accuracy from which a learner resumes a better stored network; None stores none."""
        return None

    @property
    def uses_true_gains(self) -> bool:
        """Return whether offers have the accuracies on later frames; True only for bounds."""
        return False

    @property
    def recalls_on_server(self) -> bool:
        """Return whether learners on a server store and resume networks too."""
        return False

    @property
    def shares_zoo(self) -> bool:
        """Return whether learners at one site share stored networks that are built equally."""
        return True

    @property
    def detects_boundaries(self) -> bool:
        """Return whether boundaries of domains are detected, at which the network as built returns."""
        return False

    @property
    def labels_per_round(self) -> int | None:
        """Return how many samples a round on a device labels, the newest; None: all."""
        return None

    @property
    def first_samples_s(self) -> float | None:
        """Return the time after a boundary at which samples are taken first; None: as streaming plans."""
        return None

    @property
    def schedules_server(self) -> bool:
        """Return whether it also divides the GPUs of a training server; else first come, first served."""
        return False

    def initial_trials(self, configs: int) -> Sequence[int]:
        """Return the indices of the configurations to try before an offer; `Grant.trials` names later ones."""
        return ()

    def expected_accuracies(self, offer: TrainingOffer) -> tuple[float | None, ...]:
        """Return the accuracy after each configuration by which it plans: by default as estimated or tried."""
        return tuple(config.accuracy for config in offer.configs)

    @abstractmethod
    def allocate(self, window: SchedulerInput) -> Allocation:
        """Allocate the processor to the window's demands."""
