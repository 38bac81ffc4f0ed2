"""ElasticDNN with a teacher: retrains the filters with the largest gradients of the labels' loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.batches import NO_FRAMES, Rows
from driftlab.platform.adaptation.elasticdnn import Elastic

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class ElasticTeacher(Elastic):
    """Score and train filters by the loss of a teacher's labels."""

    labels = "teacher"

    def training_configs(self, planned: Phase) -> tuple[Phase, ...]:
        """Return a phase with its number of steps, so that schedulers can run a part of it."""
        return (replace(planned, iterations=planned.iterations or self.iterations),)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return "no labels" if batch.labels is None else "" if len(batch.images) else NO_FRAMES

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor | None:
        assert run.batch.labels is not None
        return run.batch.task.loss(self.outputs(run, rows), run.batch.labels[rows])

    def score_loss(self, run: LearningRun, rows: Rows) -> torch.Tensor | None:
        return self.loss(run, rows)
