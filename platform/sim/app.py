"""One application while its cell runs: its links, learner, chosen networks and account."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from driftlab.datasets.catalogue import find_workload
from driftlab.platform.core.records import ModelCost, Rows, TimedInference, Variant
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scheduling.base import ObservedBy
from driftlab.platform.sim.experts import ExpertStore
from driftlab.platform.sim.ledger import Account
from driftlab.platform.sim.load_sensor import MAX_READINGS
from driftlab.platform.sim.messages import Direction, Message
from driftlab.platform.sim.session import Job, Kind, NodeId
from driftlab.platform.sim.setting import AppSpec
from driftlab.platform.sim.teaching import LearnerSim
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.world import link
from driftlab.platform.world.link import Link, RadioMeter

if TYPE_CHECKING:
    from driftlab.platform.sim.device import DeviceSim


@dataclass(frozen=True, eq=False)
class StreamSegment:
    """A segment of the stream that an application is processing."""

    start_s: float
    stop_s: float
    capturing: Job


@dataclass(frozen=True)
class SeenAccuracy:
    """The newest measured or estimated accuracy of an application on its device."""

    accuracy: float
    by: ObservedBy
    since_s: float  # of the predictions


@dataclass
class Links:
    """The links of a device, which its applications share, and the damage of one application's messages."""

    uplink: Link
    downlink: Link
    radio: RadioMeter
    faults: Mapping[Direction, np.random.Generator]  # they decide which messages arrive damaged
    damage_prob: float  # per message
    messages: Counter[str] = field(default_factory=Counter)  # by direction


@dataclass
class NetworkChoice:
    """The networks of its family that an application runs and trains."""

    runs: int | None = None  # the network that the device runs, where one was chosen
    trains: int | None = None  # the network that the learner trains
    state: Any = None  # of the scaling member's choices
    timed: deque[TimedInference] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    estimated: tuple[float, ...] | None = None  # accuracy of each network after a phase on the newest samples

    def with_estimates(self, variants: Sequence[Variant]) -> Sequence[Variant]:
        """Return networks with their estimated accuracies, where the learner has estimated them."""
        if self.estimated is None:
            return variants
        return tuple(replace(one, accuracy=after) for one, after in zip(variants, self.estimated, strict=True))


class AppSim:
    """One application on a device while its cell runs."""

    def __init__(self, device: DeviceSim, spec: AppSpec, up: Link, down: Link, damage_prob: float) -> None:
        self.device, self.spec, self.runner = device, spec, device.runner
        self.name = device.spec.name_of(spec)  # of its nodes
        self.networks = self.runner.setup.apps[spec.name]
        self.facts = StreamFacts(spec.stream.fps, spec.stream.duration_s)
        self.video = find_workload(spec.stream.workload).video
        seed = self.runner.cell.seed
        faults = {direction: rng_for(seed, "damage", self.name, direction) for direction in get_args(Direction)}
        self.links = Links(up, down, device.radio, faults, damage_prob)
        self.learner: LearnerSim = LearnerSim(self)
        self.choice = NetworkChoice()
        self.account = Account()
        self.observed: SeenAccuracy | None = None  # newest
        self.segment: StreamSegment | None = None
        self.off_s = math.inf  # when its device stops, because the battery is empty

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of the student's input."""
        return self.spec.stream.height, self.spec.stream.width

    @property
    def experts(self) -> ExpertStore:
        """Return the stored networks, which learners at its site share whose networks are built equally."""
        site = self.device.experts if self.learner.local else self.runner.server.experts
        owner = "" if self.runner.scheduling.shares_zoo else self.name
        return site[self.networks.student.name, self.networks.student.digest, self.choice.trains, owner]

    @property
    def pixels(self) -> int:
        return self.spec.stream.height * self.spec.stream.width

    @property
    def teacher(self) -> NodeId:
        return NodeId("teacher", self.spec.name)

    def node(self, kind: Kind) -> NodeId:
        return NodeId(kind, self.name)

    def observe(self, accuracy: float, by: ObservedBy, since_s: float) -> None:
        """Keep the accuracy of its newest scored predictions, for the scheduler."""
        self.observed = SeenAccuracy(accuracy, by, since_s)

    def take_rows(self, rows: Rows) -> None:
        """Write the rows of its learner, which does not have its name."""
        for table, chunks in rows.items():
            for chunk in chunks:
                count = len(next(iter(chunk.values())))
                place = {"device": [self.device.spec.name] * count, "app": [self.spec.name] * count}
                self.runner.ledger.add(table, {**place, **chunk})

    def cost_of(self, variant: int | None = None) -> ModelCost:
        """Return the cost of a network of its family; None: the one that its learner trains."""
        return self.networks.cost_of(self.choice.trains if variant is None else variant)

    def present(self, time_s: float) -> bool:
        """Return whether the application runs at a time."""
        return time_s < self.off_s and any(app.name == self.spec.name for app in self.device.spec.present(time_s))

    def message(self, direction: Direction, kind: str) -> Message:
        """Create a message; its damage on the way is drawn now."""
        damage = None
        if not self.learner.local:
            damage = link.draw_damage(self.links.faults[direction], self.links.damage_prob)
        return Message(self, direction, kind, damage, "torn" if damage else "")
