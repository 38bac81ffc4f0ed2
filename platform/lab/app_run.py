"""What the loop remembers: of an application, of an upload that has reached the server, and of a visit there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import simpy

from driftlab.platform.core.records import Stored, Trained, Uploaded
from driftlab.platform.lab.backend import Job, Kind, NodeId
from driftlab.platform.lab.cells import AppSpec, DeviceSpec
from driftlab.platform.lab.context import AppContext
from driftlab.platform.lab.ledger import Account
from driftlab.platform.streaming.base import DownlinkPlan, StreamFacts
from driftlab.platform.world import damage
from driftlab.platform.world.damage import Damage
from driftlab.platform.world.link import Link, Transfer

Direction = Literal["up", "down"]
TOO_LATE = "it did not arrive in the session"
GONE = "its application had gone"


@dataclass(frozen=True, eq=False)
class Upload:
    """Samples that have reached the server."""

    sent: Uploaded
    packing: Job
    stamp_s: float | None  # when they arrived, if that is how they are filed; else every frame has its own time


@dataclass
class AppRun:
    """One application on a device of the cell, as the loop sees it: what it watches, sends, and gets back."""

    spec: DeviceSpec
    tenant: AppSpec
    setting: AppContext
    plan: StreamFacts
    up: Link  # the device's: its applications share it
    down: Link
    faults: Mapping[Direction, np.random.Generator]  # decide which messages arrive damaged
    damaged: float  # share of them
    server_state: Any  # the streaming member's state at the server
    device_state: Any  # and as the device last heard of it
    turn: simpy.Resource  # one visit of a device at a time, however many GPUs there are
    has_learner: bool = False
    runs: int | None = None  # which of its networks the device runs, where a scheduler has chosen
    trains: int | None = None  # and which of them the learner works on
    messages: Counter[str] = field(default_factory=Counter)  # by direction
    waiting: list[Upload] = field(default_factory=list)  # for the next visit, which takes them all
    in_step: bool = True  # whether the device took the last update; if it did not, it can take none that builds on it
    account: Account = field(default_factory=Account)

    @property
    def device(self) -> str:
        return self.spec.name

    @property
    def app(self) -> str:
        return self.tenant.app.name

    @property
    def name(self) -> str:
        return self.spec.name_of(self.tenant)

    def node(self, kind: Kind) -> NodeId:
        return NodeId(kind, self.name)

    def present(self, time_s: float) -> bool:
        """Tell whether the application runs at a time."""
        return any(app.name == self.app for app in self.spec.present(time_s))

    def message(self, direction: Direction, kind: str) -> Message:
        """Begin a message; what becomes of it on the way is drawn now."""
        damaged = damage.draw(self.faults[direction], self.damaged)
        return Message(self, direction, kind, damaged, "torn" if damaged else "")


@dataclass
class Message:
    """One message over a link, for its row in the transfers table."""

    edge: AppRun
    direction: Direction
    kind: str
    damage: Damage | None
    refused: str  # why its receiver throws it away
    sequence: int = 0
    transfer: Transfer | None = None

    @property
    def missed(self) -> str:
        """Why nobody is there to take it; empty: somebody is."""
        if self.arrive_s >= self.edge.plan.duration_s:
            return TOO_LATE
        return GONE if self.direction == "down" and not self.edge.present(self.arrive_s) else ""

    @property
    def arrive_s(self) -> float:
        assert self.transfer is not None, "it has not arrived"
        return self.transfer.arrive_s


@dataclass
class TrainingRound:
    """One stay at the server, for its row in the updates table; one without uploads only sends the weights again."""

    edge: AppRun
    uploads: tuple[Upload, ...] = ()
    teach_start_s: float | None = None
    teach_end_s: float | None = None
    train_start_s: float | None = None
    train_end_s: float | None = None
    state: Any = None  # the streaming member's, after this visit
    stored: Stored | None = None
    trained: Trained | None = None
    answer: DownlinkPlan | None = None
    idle: str = ""  # why nothing was trained


def together(stored: Sequence[Stored]) -> Stored:
    """Sum up what was stored one after another."""
    phis = tuple(phi for one in stored for phi in one.phis)
    frames, unknown = sum(one.frames for one in stored), sum(one.unknown for one in stored)
    return replace(stored[-1], frames=frames, unknown=unknown, phis=phis)


def nothing_to_learn(stored: Stored | None, answer: DownlinkPlan) -> bool:
    """Tell whether no sample that a phase may still use has a label that counts."""
    return stored is None or stored.usable_s is None or stored.usable_s < answer.oldest_s
