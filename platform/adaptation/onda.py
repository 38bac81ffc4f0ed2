"""ONDA (IROS 2018): online moving average of batch-norm statistics, every few frames.

Differs from the paper: a group that leaves a batch norm one value per channel is skipped entirely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from driftlab.platform.adaptation.batches import StreamBatch
from driftlab.platform.adaptation.learn import NormStatistics
from driftlab.platform.core.parameters import Means


@dataclass(frozen=True)
class Onda(NormStatistics):
    """Move the statistics of batch norms towards every group of `stream_batch` frames."""

    stream_batch: StreamBatch = 10
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest group in the statistics of batch norms")] = 0.1
