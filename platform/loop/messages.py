"""Messages between a device and its server, and samples that wait for a learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftlab.platform.backend.base import Job
from driftlab.platform.core.records import Uploaded
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.world.damage import Damage
from driftlab.platform.world.link import Transfer

if TYPE_CHECKING:
    from driftlab.platform.loop.app_run import AppRun

Direction = Literal["up", "down"]
TOO_LATE = "it did not arrive in the session"
GONE = "its application had gone"


@dataclass
class Message:
    """One message, for its row in the transfers table; one that stays on the device crosses no link."""

    app: AppRun
    direction: Direction
    kind: str
    damage: Damage | None
    refused: str  # why its receiver throws it away
    sequence: int = 0
    transfer: Transfer | None = None
    arrive_s: float = 0.0

    @property
    def missed(self) -> str:
        """Why nothing is there to take it; empty: something is."""
        if self.arrive_s >= self.app.facts.duration_s:
            return TOO_LATE
        return GONE if self.direction == "down" and not self.app.present(self.arrive_s) else ""


@dataclass(frozen=True, eq=False)
class Upload:
    """Samples that have reached the place where the learner stands."""

    sent: Uploaded
    sampling: Sampling
    frames: Job  # its payload is what the receiver decoded
    truth: Job  # what an oracle is asked about; the frames themselves for every other teacher
    stamp_s: float | None  # when they arrived, if that is how they are filed; else every frame has its own time
