"""One application on a device of the cell, as the loop sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from driftlab.platform.backend.base import Job, Kind, NodeId
from driftlab.platform.loop.cell import AppSpec, DeviceSpec
from driftlab.platform.loop.context import AppContext
from driftlab.platform.loop.ledger import Account
from driftlab.platform.loop.messages import Direction, Message, Upload
from driftlab.platform.scheduling.base import Learning
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.world import damage
from driftlab.platform.world.link import Link


@dataclass(frozen=True, eq=False)
class View:
    """A piece of the stream that an application is looking at."""

    start_s: float
    stop_s: float
    capturing: Job


@dataclass
class AppRun:
    """What an application watches, sends, and gets back."""

    spec: DeviceSpec
    wish: AppSpec
    context: AppContext
    facts: StreamFacts
    up: Link  # the device's: its applications share it
    down: Link
    faults: Mapping[Direction, np.random.Generator]  # decide which messages arrive damaged
    damaged: float  # share of them
    server_state: Any  # the streaming member's state where the learner stands
    device_state: Any  # and as the device last heard of it
    turn: simpy.Resource  # one training round of an application at a time, however many GPUs there are
    local: bool = False  # whether its learner stands on the device
    has_learner: bool = False
    runs: int | None = None  # which of its networks the device runs, where one was chosen
    trains: int | None = None  # and which of them the learner works on
    chosen: Any = None  # what the scaling member's last choice handed on
    learning: Learning | None = None  # what it offers to learn or is learning on the device
    way: int | None = 0  # which of the offered ways the scheduler chose; None: none
    view: View | None = None
    messages: Counter[str] = field(default_factory=Counter)  # by direction
    waiting: list[Upload] = field(default_factory=list)  # for the next round, which takes them all
    in_step: bool = True  # whether the device took the last update; if it did not, it can take none that builds on it
    account: Account = field(default_factory=Account)

    @property
    def device(self) -> str:
        return self.spec.name

    @property
    def app(self) -> str:
        return self.wish.app.name

    @property
    def name(self) -> str:
        return self.spec.name_of(self.wish)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the student's input."""
        return self.wish.stream.height, self.wish.stream.width

    @property
    def teacher(self) -> NodeId:
        return NodeId("teacher", self.app)

    def node(self, kind: Kind) -> NodeId:
        return NodeId(kind, self.name)

    def present(self, time_s: float) -> bool:
        """Tell whether the application runs at a time."""
        return any(app.name == self.app for app in self.spec.present(time_s))

    def message(self, direction: Direction, kind: str) -> Message:
        """Begin a message; what becomes of it on the way is drawn now."""
        damaged = None if self.local else damage.draw(self.faults[direction], self.damaged)
        return Message(self, direction, kind, damaged, "torn" if damaged else "")
