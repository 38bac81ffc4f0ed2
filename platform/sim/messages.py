"""Messages between a device and its server, and samples that wait for a learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftlab.platform.core.records import Uploaded
from driftlab.platform.sim.session import Job
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.world.link import Damage, Transfer

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim

Direction = Literal["up", "down"]
TOO_LATE = "it did not arrive in the session"
APP_GONE = "its application had gone"


@dataclass
class Message:
    """A message, for its row in the transfers table; a message within the device crosses no link."""

    app: AppSim
    direction: Direction
    kind: str
    damage: Damage | None
    refused: str  # why its receiver refuses it
    sequence: int = 0
    transfer: Transfer | None = None
    arrive_s: float = 0.0

    @property
    def missed(self) -> str:
        """Return why the receiver is absent; empty if it is present."""
        if self.arrive_s >= self.app.facts.duration_s:
            return TOO_LATE
        return APP_GONE if self.direction == "down" and not self.app.present(self.arrive_s) else ""


@dataclass(frozen=True, eq=False)
class Upload:
    """Samples that have reached the learner's machine."""

    sent: Uploaded
    sampling: Sampling
    frames: Job  # its payload is the decoded frames
    truth: Job  # for an oracle: frames with truth; for other teachers the decoded frames
    stamp_s: float | None  # arrival time, where samples are stored under it; else each frame has its capture time
