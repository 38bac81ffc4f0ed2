"""CoTTA: a student learns from the average of its own past, and some of its weights return to the source at each step.

The network that answers is the average, the teacher; the state holds the student. In variant `edgebench` the network is
the student, whose batch norms keep statistics, and the state holds the teacher.

Differs from the paper: a batch is answered by the teacher itself and views count for the lesson alone; there are 4 of
them, computed where they are used, and none is mirrored unless `views` says so; in segmentation they change colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from driftlab.platform.adaptation.augment import Views, augment
from driftlab.platform.adaptation.base import Batch
from driftlab.platform.adaptation.batches import NO_FRAMES, PhaseSteps, PredictOn, Rows, without_entropy
from driftlab.platform.adaptation.learn import LearningAdaptation, StatefulAdaptation
from driftlab.platform.adaptation.objectives import cross_entropy, samples_of
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.training.descent import Adam

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun

    Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class CoTta(LearningAdaptation, StatefulAdaptation):
    """Follow a teacher that is the average of past students, and restore weights at random."""

    predict_on: PredictOn = "batch"
    variant: Annotated[Literal["original", "edgebench"], Means("whether the teacher answers, or the student")] = (
        "original"
    )
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of adam")] = 1e-3
    ema_decay: Annotated[float, Ge(0), Le(1), Means("weight of the past in the teacher, at each step")] = 0.999
    restore_prob: Annotated[float, Ge(0), Le(1), Means("share of the weights that return to the source at a step")] = (
        0.01
    )
    confidence_threshold: Annotated[
        float, Ge(0), Le(1), Means("mean confidence of the source below which the teacher looks at views")
    ] = 0.92
    augmentations: Annotated[int, Ge(0), Means("views of a frame")] = 4
    views: Annotated[Views, Means("what a view changes; of label maps only the colour")] = "all"
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms, in variant edgebench")
    ] = 0.1
    iterations: PhaseSteps = 10
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 50

    tasks = ("segmentation", "classification")

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        from driftlab.platform.networks.vector import read

        return {"other": read(model)}

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        why = without_entropy(batch.task) if len(batch.images) else NO_FRAMES
        return why or ("" if self.scope(model) else "the network has nothing that learns")

    def scope(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.vector import layout_of

        return list(layout_of(model).names)

    def rule(self) -> Adam:
        return Adam(self.learning_rate)

    def by_batch(self) -> bool:
        return self.variant == "original"

    def start(self, run: LearningRun) -> str:
        """Bind all parameters; those of source, student and teacher take turns in the network."""
        import torch

        why = super().start(run)
        other = torch.tensor(run.held["other"], device=run.device)
        parts = other.split([value.numel() for value in run.parameters.values()])
        here = {name: value.data for name, value in run.parameters.items()}
        away = {name: part.view(here[name].shape) for name, part in zip(here, parts, strict=True)}
        source = {name: torch.tensor(run.state.source[name], device=run.device) for name in here}
        student, teacher = (here, away) if self.variant == "edgebench" else (away, here)
        run.notes.update(source=source, student=student, teacher=teacher, other=other)
        return why

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        import torch

        source, student, teacher = (run.notes[name] for name in ("source", "student", "teacher"))
        inputs = run.inputs(rows)
        with torch.no_grad():
            target = self._target(run, inputs)
        with run.using(student):
            loss = cross_entropy(samples_of(run.outputs_of(inputs)), target).mean()  # consistency with the teacher
            if not run.learn(loss):
                return
        drawn = torch.from_numpy(run.batch.rng.random(len(run.notes["other"])) < self.restore_prob).to(run.device)
        parts = drawn.split([value.numel() for value in student.values()])
        for (name, value), back in zip(student.items(), parts, strict=True):
            teacher[name].lerp_(value, 1 - self.ema_decay)  # weight-averaged teacher
            value.copy_(torch.where(back.view(value.shape), source[name], value))  # stochastic restoration
        run.held["other"] = run.notes["other"].cpu().numpy()

    def _target(self, run: LearningRun, inputs: torch.Tensor) -> torch.Tensor:
        """Return the teacher's shares of the classes: of views where the source is unsure, else of the frames."""
        teacher = run.notes["teacher"]
        plain = self._outputs(run, teacher, inputs)
        sure = samples_of(self._outputs(run, run.notes["source"], inputs)).softmax(dim=1).amax(dim=1).mean()
        views: Views = self.views if plain.dim() == 2 or self.views == "none" else "colour"
        if not self.augmentations or views == "none" or bool(sure >= self.confidence_threshold):
            return samples_of(plain).softmax(dim=1)
        seen = [self._outputs(run, teacher, augment(inputs, run.batch.rng, views)) for _ in range(self.augmentations)]
        return samples_of(sum(seen[1:], seen[0]) / len(seen)).softmax(dim=1)

    def _outputs(self, run: LearningRun, weights: Named, inputs: torch.Tensor) -> torch.Tensor:
        """Run the network with other weights; in `edgebench` with the source's statistics of batch norms."""
        with run.using(weights), run.source_statistics() if self.variant == "edgebench" else nullcontext():
            return run.outputs_of(inputs)
