"""Messages between a device and its server: samples on the uplink, results of rounds on the downlink.

A message is queued on its link, counted, perhaps damaged, and charged to the device's radio. One within a device
crosses no link: it arrives at once and has no row. The device encodes samples before they are queued, and decodes
labels and patches weights after they have arrived. Coding on the server takes no time: its processors are not modelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from driftlab.platform.core.records import Applied, TaskCost, Uploaded
from driftlab.platform.sim.rows import transfer_row
from driftlab.platform.sim.session import Job
from driftlab.platform.streaming.base import PLAN_BYTES, Sampling
from driftlab.platform.world.clock import Process
from driftlab.platform.world.cost import add_costs, auxiliary_cost
from driftlab.platform.world.link import MessageDamage, Transfer

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim
    from driftlab.platform.sim.rounds import WeightRound

Direction = Literal["up", "down"]
TOO_LATE = "it did not arrive in the session"
APP_GONE = "its application had gone"
UNPACKED_MACS = 2  # per pixel of a label map from the server


@dataclass
class Message:
    """A message, for its row in the transfers table."""

    app: AppSim
    direction: Direction
    kind: str
    damage: MessageDamage | None
    refused: str  # why its receiver refuses it
    sequence: int = 0
    transfer: Transfer | None = None
    arrive_s: float = 0.0
    ready_s: float = 0.0  # when its receiver has decoded or patched its content

    def carry(self, size: int) -> Process:
        """Send it to the other end and count it."""
        app, links = self.app, self.app.links
        self.arrive_s = app.runner.clock.now
        if not app.learner.local:
            links.messages[self.direction] += 1
            self.sequence = links.messages[self.direction]
            link = links.uplink if self.direction == "up" else links.downlink
            self.transfer = yield from link.send(size)
            self.arrive_s = self.transfer.arrive_s
            app.account.sent(self.direction, self.transfer)
            app.account.spend("radio", links.radio.add(self.transfer, self.direction))
        self.receive_at(self.arrive_s)

    def receive_at(self, ready_s: float) -> None:
        """Set when its content is ready; refuse one whose receiver has gone by then."""
        self.ready_s = ready_s
        self.refused = self.missed or self.refused

    @property
    def missed(self) -> str:
        """Return why the receiver is absent; empty if it is present."""
        if self.ready_s >= self.app.facts.duration_s:
            return TOO_LATE
        return APP_GONE if self.direction == "down" and not self.app.present(self.ready_s) else ""

    def write(self, **columns: Any) -> None:
        """Write its row, after its receiver has accepted or refused it."""
        if self.transfer is not None:
            self.app.runner.ledger.row("transfers", **transfer_row(self), **columns)


@dataclass(frozen=True, eq=False)
class Upload:
    """Samples that have reached the learner's processor."""

    sent: Uploaded
    sampling: Sampling
    frames: Job  # its payload is the decoded frames
    truth: Job  # for an oracle: frames with truth; for other teachers the decoded frames
    stamp_s: float | None  # arrival time, where samples are stored under it; else each frame has its capture time


# Results of a round --------------------------------------------------------------------------------------------------


@dataclass
class Delivery(ABC):
    """A result of a round, for the device."""

    app: AppSim

    kind = ""
    purpose = ""  # of the energy of taking it

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Return its bytes on the link."""

    @property
    def intake(self) -> TaskCost:
        """Return the cost of making it usable on the device: decoding labels, or patching weights."""
        return TaskCost()

    def take(self, message: Message) -> Job | None:
        """Pass it to the application, whose reply holds an `Applied`; None if it uses no such result."""
        return None

    @abstractmethod
    def settle(self, message: Message, applied: Applied | None) -> Mapping[str, Any] | None:
        """Process its outcome; return its row of the updates table, if it has one."""


@dataclass
class LabelDelivery(Delivery):
    """Labels of one upload; the device warps them once they are decoded."""

    upload: Upload
    packed: Job
    size: int

    kind, purpose = "labels", "coding"

    @property
    def bytes(self) -> int:
        return self.size

    @property
    def intake(self) -> TaskCost:
        return auxiliary_cost(self.app.device.spec.hardware, macs=UNPACKED_MACS * self.app.pixels)

    def take(self, message: Message) -> Job:
        times_s = self.upload.sent.newest_s, message.ready_s
        node, session = self.app.node("application"), self.app.runner.session
        return session.call(node, "track", self.packed, *times_s, message.damage)

    def settle(self, message: Message, applied: Applied | None) -> None:
        return None


@dataclass
class PlanDelivery(Delivery):
    """A new plan alone, after a round without training."""

    training_round: WeightRound

    kind = "plan"

    @property
    def bytes(self) -> int:
        return PLAN_BYTES

    def settle(self, message: Message, applied: Applied | None) -> Mapping[str, Any]:
        if not message.refused:
            self.app.learner.device_state = self.training_round.state
        return {"done": self.training_round, "reason": self.training_round.idle}


@dataclass
class UpdateDelivery(Delivery):
    """Weights; the device uses them once its shadow copy is patched."""

    training_round: WeightRound
    packing: Job

    kind, purpose = "update", "patching"

    @property
    def bytes(self) -> int:
        assert self.training_round.trained is not None
        return self.training_round.trained.bytes

    @property
    def intake(self) -> TaskCost:
        hardware, trained = self.app.device.spec.hardware, self.training_round.trained
        moved_bytes = 2 * self.app.cost_of().weight_bytes + self.bytes  # the shadow copy is read and written
        patching = auxiliary_cost(hardware, moved_bytes=moved_bytes)
        if trained is None or self.app.learner.local:
            return patching
        surgery = [
            auxiliary_cost(hardware, macs=one.macs, moved_bytes=one.input_bytes + one.output_bytes)
            for one in trained.surgery
        ]
        return add_costs([patching, *surgery])

    def take(self, message: Message) -> Job:
        node, session = self.app.node("application"), self.app.runner.session
        return session.call(node, "apply", self.packing, message.ready_s, message.damage)

    def settle(self, message: Message, applied: Applied | None) -> Mapping[str, Any]:
        if applied is None:
            return {"done": self.training_round, "reason": message.refused}
        self.app.account.updates += applied.accepted
        if applied.accepted:
            self.app.learner.in_step, self.app.learner.device_state = True, self.training_round.state
        return {
            "done": self.training_round,
            "reason": applied.reason or self.training_round.idle,
            "applied": applied,
            "arrive_s": message.arrive_s,
        }
