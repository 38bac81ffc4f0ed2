"""ElasticDNN with a teacher: retrain the filters that matter for the loss of a teacher's labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.elasticdnn import Elastic, PhaseRun

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ElasticTaught(Elastic):
    """Score and train filters by the loss of a teacher's labels."""

    labels = "teacher"

    def ways(self, planned: Phase) -> tuple[Phase, ...]:
        """Say how many steps a phase has, so that schedulers can try out a part of it."""
        return (replace(planned, iterations=planned.iterations or self.iterations),)

    def unfit(self, batch: Batch) -> str:
        return "no labels" if batch.labels is None else "" if len(batch.images) else stream.NO_FRAMES

    def loss(self, lesson: PhaseRun, rows: stream.Rows) -> torch.Tensor | None:
        assert lesson.batch.labels is not None
        return lesson.batch.task.loss(lesson.outputs(rows), lesson.batch.labels[rows])

    def score_loss(self, lesson: PhaseRun, rows: stream.Rows) -> torch.Tensor | None:
        return self.loss(lesson, rows)
