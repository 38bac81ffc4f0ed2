"""One-Time, a baseline of AMS (ICCV 2021): fine-tune once on the beginning of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Stored
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming, choose_times
from driftlab.platform.streaming.wire.samples import codec_faults


@dataclass(frozen=True)
class OneTime(Streaming):
    """One-Time (AMS, ICCV 2021): upload samples once, download all weights once.

    The samples are of the first `sample_s` seconds.
    """

    sample_s: Annotated[float, Gt(0), Means("duration of the sampling from the start of the stream", "s")] = 60.0
    rate_fps: Annotated[float, Gt(0), Means("sampling rate", "frames/s")] = 1.0
    iterations: Annotated[int, Gt(0), Means("number of training steps")] = 200
    codec: Annotated[str, Means("encoding of uploaded frames: png, jpeg[:QUALITY], h264[:BITS_PER_PIXEL]")] = "jpeg"

    feeds_learner = True

    def faults(self) -> list[str]:
        """List an unknown codec."""
        return codec_faults(self.codec)

    def reads_end(self, session: StreamFacts) -> bool:
        """Return whether the session ends before the sampling does: the upload is then sent at its end."""
        return session.duration_s < self.sample_s

    def start(self, session: StreamFacts) -> bool:
        return False

    def plan_uplink(self, state: bool, session: StreamFacts, now_s: float, seen: Seen) -> Sampling | None:
        """Plan the only upload at the start; it is sent when the sampling ends."""
        if now_s > 0:
            return None
        stop_s = min(self.sample_s, session.duration_s)
        times_s = choose_times(0.0, stop_s, fps=session.fps, rate_fps=self.rate_fps)
        return Sampling(times_s, send_s=stop_s, codec=self.codec, rate_fps=self.rate_fps)

    def plan_downlink(self, state: bool, session: StreamFacts, stored: Stored, now_s: float) -> DownlinkPlan:
        return DownlinkPlan(True, Phase(self.iterations), dense=True)
