"""ONDA: the statistics of batch norms follow the stream by a small step for every few frames.

Differs from the paper: a group that leaves a batch norm one value per channel is skipped entirely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.stream import OfStatistics, Rows, StreamBatch, StreamMemory, follow_statistics
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Onda(OfStatistics):
    """Move the statistics of batch norms towards every group of `stream_batch` frames."""

    stream_batch: StreamBatch = 10
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest group in the statistics of batch norms")] = 0.1

    def move(self, model: nn.Module, state: StreamMemory, batch: Batch, parts: Sequence[Rows], phase: Phase) -> Adapted:
        return follow_statistics(model, state, batch, parts, momentum=self.momentum)
