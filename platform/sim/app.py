"""The state of one application on a device during a cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import simpy

from driftlab.platform.core.records import ModelCost, Variant
from driftlab.platform.scheduling.base import Learning, ObservedBy
from driftlab.platform.sim.context import AppNetworks
from driftlab.platform.sim.ledger import Account
from driftlab.platform.sim.messages import Direction, Message, Upload
from driftlab.platform.sim.session import Job, Kind, NodeId
from driftlab.platform.sim.setting import App, Device
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.world import link
from driftlab.platform.world.link import Link


@dataclass(frozen=True, eq=False)
class StreamSegment:
    """A piece of the stream that an application is processing."""

    start_s: float
    stop_s: float
    capturing: Job


@dataclass(frozen=True)
class SeenAccuracy:
    """The accuracy of an application, as its device knows it."""

    accuracy: float
    by: ObservedBy
    since_s: float  # of the predictions


@dataclass(frozen=True)
class RoundGain:
    """What the newest training round of an application took and gained."""

    ended_s: float
    interval_s: float  # since the one before, or since the start
    work_s: float
    after: float  # accuracy on the samples
    gain: float  # at least 0


@dataclass
class AppSim:
    """One application on a device: its request, its links, and its state in the loop."""

    spec: Device
    wish: App
    context: AppNetworks
    facts: StreamFacts
    up: Link  # of the device: its applications share it
    down: Link
    faults: Mapping[Direction, np.random.Generator]  # they decide which messages arrive damaged
    damaged: float  # share of them
    server_state: Any  # the streaming member's state where the learner stands
    device_state: Any  # the device's copy of that state, as of the last plan
    turn: simpy.Resource  # one training round of an application at a time, regardless of the number of GPUs
    local: bool = False  # whether its learner is on the device
    has_learner: bool = False
    runs: int | None = None  # the network that the device runs, where one was chosen
    trains: int | None = None  # the network that the learner trains
    chosen: Any = None  # state of the scaling member's choices
    estimated: tuple[float, ...] | None = None  # accuracy of each network after a phase on the newest samples
    learning: Learning | None = None  # training that it offers or runs on the device
    observed: SeenAccuracy | None = None  # newest
    gained: RoundGain | None = None  # on a server that a scheduling member shares
    way: int | None = 0  # the way that the scheduler chose; None: none
    tries: tuple[int, ...] = ()  # the ways that it wants tried out first
    view: StreamSegment | None = None
    messages: Counter[str] = field(default_factory=Counter)  # by direction
    domain: int | None = None  # as the device detected it before its newest samples
    waiting: list[Upload] = field(default_factory=list)  # for the next round, which takes all of them
    in_step: bool = True  # whether the device applied the last update; if not, it can apply none that builds on it
    off_s: float = math.inf  # when its device stops for good: the battery is empty
    account: Account = field(default_factory=Account)

    @property
    def device(self) -> str:
        return self.spec.name

    @property
    def app(self) -> str:
        return self.wish.name

    @property
    def name(self) -> str:
        return self.spec.name_of(self.wish)

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of the student's input."""
        return self.wish.stream.height, self.wish.stream.width

    @property
    def teacher(self) -> NodeId:
        return NodeId("teacher", self.app)

    def cost_of(self, variant: int | None = None) -> ModelCost:
        """Return the cost of a network of its family; None: the one that its learner trains."""
        return self.context.cost_of(self.trains if variant is None else variant)

    def as_estimated(self, variants: Sequence[Variant]) -> Sequence[Variant]:
        """Return networks with their estimated accuracies, where its learner has estimated them."""
        if self.estimated is None:
            return variants
        return tuple(replace(one, accuracy=found) for one, found in zip(variants, self.estimated, strict=True))

    def node(self, kind: Kind) -> NodeId:
        return NodeId(kind, self.name)

    def present(self, time_s: float) -> bool:
        """Tell whether the application runs at a time."""
        return time_s < self.off_s and any(app.name == self.app for app in self.spec.present(time_s))

    def message(self, direction: Direction, kind: str) -> Message:
        """Create a message; its damage on the way is drawn now."""
        damaged = None if self.local else link.draw_damage(self.faults[direction], self.damaged)
        return Message(self, direction, kind, damaged, "torn" if damaged else "")
