"""ONDA: the statistics of batch norms follow the stream, a little with every few frames.

Differs from the paper: a group that leaves a batch norm one value per channel is skipped as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.stream import NO_STEPS, OnStream, StreamBatch, follow, groups, unfit
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Onda(OnStream):
    """Move the statistics of batch norms towards every group of `stream_batch` frames."""

    stream_batch: StreamBatch = 10
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest group in the statistics of batch norms")] = 0.1

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        if why := unfit(model, batch):
            return Adapted(state, skipped=why, work=Passes())
        parts = groups(len(batch.images), phase, self.stream_batch)
        if not parts:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        return follow(model, state, batch, parts, momentum=self.momentum)

    def work_of(self, phase: Phase, frames: int) -> Passes | None:
        """Say how many frames go forward, of a network with batch norms."""
        return Passes(tuple(len(rows) for rows in groups(frames, phase, self.stream_batch) if len(rows)), trained=())
