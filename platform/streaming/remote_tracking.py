"""Remote+Tracking, a baseline of AMS (ICCV 2021): optical flow warps labels of the server.

Differs from the paper: flow is computed at the student's input size, and until the first labels arrive the device uses
the predictions of its pre-trained student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, newest_s
from driftlab.platform.streaming.wire.samples import codec_faults


@dataclass(frozen=True)
class RemoteTracking(Streaming):
    """Remote+Tracking (AMS, ICCV 2021): upload one frame every `every_s` seconds, download its labels."""

    every_s: Annotated[float, Gt(0), Means("time between two uploaded frames", "s")] = 1.0
    chained: Annotated[
        bool, Means("whether labels are warped frame by frame; else directly from the labelled frame")
    ] = True
    codec: Annotated[str, Means("encoding of uploaded frames: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = "jpeg:95"

    feeds_learner = False

    @property
    def label_tracking(self) -> Literal["chained", "direct"]:
        return "chained" if self.chained else "direct"

    def faults(self) -> list[str]:
        """List an unknown codec."""
        return codec_faults(self.codec)

    def start(self, session: StreamFacts) -> None:
        return None

    def plan_uplink(self, state: None, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Send the newest frame now and the next one after `every_s`."""
        return Sampling((newest_s(now_s, session),), send_s=now_s, next_s=now_s + self.every_s, codec=self.codec)

    def plan_downlink(self, state: None, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        return DownlinkPlan(state, phase=None)
