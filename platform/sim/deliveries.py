"""The results of a training round for the device: labels, weights, or a new plan alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftlab.platform.core.records import Need, Receipt, Stored, Trained
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.messages import Message, Upload
from driftlab.platform.sim.session import Job, Session
from driftlab.platform.streaming.base import PLAN_BYTES, DownlinkPlan
from driftlab.platform.world.cost import add_needs


@dataclass
class Round:
    """A training round, for its row in the updates table; one without uploads only sends weights."""

    app: AppSim
    uploads: tuple[Upload, ...] = ()
    teach_start_s: float | None = None
    teach_end_s: float | None = None
    train_start_s: float | None = None
    train_end_s: float | None = None
    state: Any = None  # of the streaming member, after this round
    stored: Stored | None = None
    trained: Trained | None = None
    plan: DownlinkPlan | None = None
    way: str | None = None  # the one of several that the scheduler chose
    begins: int | None = None  # number of the stored network from which it goes on
    needs: list[Need] = field(default_factory=list)  # of every step
    idle: str = ""  # why nothing was trained
    now_s: float = 0.0  # end of the last step

    @property
    def need(self) -> Need:
        return add_needs(self.needs)


@dataclass
class Delivery(ABC):
    """A message to the device after a round."""

    app: AppSim
    session: Session

    kind = ""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Return its bytes on the link."""

    def take(self, message: Message) -> Job | None:
        """Hand it to the application, whose reply is a Receipt; None if the application does not need it."""
        return None

    @abstractmethod
    def settle(self, message: Message, applied: Receipt | None) -> Mapping[str, Any] | None:
        """Process its outcome; return its row of the updates table, if it has one."""


@dataclass
class LabelDelivery(Delivery):
    """Labels of one upload; the device warps them from their arrival on."""

    upload: Upload
    packed: Job
    size: int

    kind = "labels"

    @property
    def bytes(self) -> int:
        return self.size

    def take(self, message: Message) -> Job:
        times_s = self.upload.sent.newest_s, message.arrive_s
        return self.session.call(self.app.node("application"), "track", self.packed, *times_s, message.damage)

    def settle(self, message: Message, applied: Receipt | None) -> None:
        return None


@dataclass
class PlanDelivery(Delivery):
    """A new plan alone, after a round without training."""

    done: Round

    kind = "plan"

    @property
    def bytes(self) -> int:
        return PLAN_BYTES

    def settle(self, message: Message, applied: Receipt | None) -> Mapping[str, Any]:
        if not message.refused:
            self.app.device_state = self.done.state
        return {"done": self.done, "reason": self.done.idle}


@dataclass
class UpdateDelivery(Delivery):
    """Weights; the device uses them from their arrival on."""

    done: Round
    packing: Job

    kind = "update"

    @property
    def bytes(self) -> int:
        assert self.done.trained is not None
        return self.done.trained.bytes

    def take(self, message: Message) -> Job:
        return self.session.call(self.app.node("application"), "apply", self.packing, message.arrive_s, message.damage)

    def settle(self, message: Message, applied: Receipt | None) -> Mapping[str, Any]:
        if applied is None:
            return {"done": self.done, "reason": message.refused}
        self.app.account.updates += applied.accepted
        if applied.accepted:
            self.app.in_step, self.app.device_state = True, self.done.state
        return {
            "done": self.done,
            "reason": applied.reason or self.done.idle,
            "applied": applied,
            "arrive_s": message.arrive_s,
        }
