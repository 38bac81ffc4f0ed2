"""CoTTA (CVPR 2022): mean-teacher consistency with stochastic restoration of source weights.

The network of the application is the teacher; the state holds the student. In variant `edgebench` the network is the
student, whose batch norms keep statistics, and the state holds the teacher.

Differs from the paper: the teacher predicts the batch itself unless `predicts` is target; there are 4 views, computed
where they are used, and none is mirrored unless `views` says so; in segmentation they change colours.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Lt

from driftlab.platform.adaptation import batches
from driftlab.platform.adaptation.augment import Views, augment
from driftlab.platform.adaptation.base import Batch
from driftlab.platform.adaptation.learn import LearningAdaptation, StatefulAdaptation
from driftlab.platform.adaptation.memory import as_tensors
from driftlab.platform.adaptation.objectives import cross_entropy, samples_of
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.training.descent import Adam, Momentum

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class CoTta(LearningAdaptation, StatefulAdaptation):
    """Train a student towards its moving average, and restore weights at random."""

    predict_on: batches.PredictOn = "batch"
    variant: Annotated[Literal["original", "edgebench"], Means("whether teacher or student predicts")] = "original"
    predicts: Annotated[
        Literal["teacher", "target"],
        Means("outputs that predict a batch: the teacher's, or the target, its mean over views where these count"),
    ] = "teacher"
    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "adam"
    learning_rate: batches.StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of sgd")] = 0.9
    ema_decay: Annotated[batches.Share, Means("weight of the past in the teacher, at each step")] = 0.999
    restore_prob: Annotated[batches.Share, Means("probability that a step restores a weight of the source")] = 0.01
    confidence_threshold: Annotated[batches.Share, Means("mean source confidence below which views count")] = 0.92
    augmentations: Annotated[int, Ge(0), Means("views of a frame")] = 4
    views: Annotated[Views, Means("augmentations of a view; label maps allow colour only")] = "all"
    bn_momentum: batches.NormMomentum = 0.1
    iterations: batches.PhaseSteps = 10
    batch: batches.StepFrames = 50

    tasks = ("segmentation", "classification")

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        from driftlab.platform.networks.vector import read

        return {"other": read(model)}

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return batches.weights_reject(model, batch) or batches.without_entropy(batch.task)

    def scope(self, model: nn.Module) -> list[str]:
        return batches.all_parameters(model)

    def rule(self) -> Adam | Momentum:
        if self.optimiser == "sgd":
            return Momentum(self.learning_rate, self.momentum)
        return Adam(self.learning_rate)

    def by_batch(self) -> bool:
        return self.variant == "original"

    def start(self, run: LearningRun) -> str:
        """Bind all parameters; the network holds those of source, student or teacher in turn."""
        why = super().start(run)
        run.held = as_tensors(run.held, run.device)
        network, other = {name: value.data for name, value in run.parameters.items()}, run.parts(run.held["other"])
        student, teacher = (network, other) if self.variant == "edgebench" else (other, network)
        source = as_tensors({name: run.state.source[name] for name in network}, run.device)
        run.notes.update(source=source, student=student, teacher=teacher)
        return why

    def train_step(self, run: LearningRun, rows: batches.Rows) -> None:
        import torch

        source, student, teacher = (run.notes[name] for name in ("source", "student", "teacher"))
        inputs = run.inputs(rows)
        with torch.no_grad():
            outputs = self._target(run, inputs)
            target = samples_of(outputs).softmax(dim=1)
        if self.predicts == "target":
            run.show(outputs)
        with run.using(student):
            if not run.learn(cross_entropy(samples_of(run.outputs_of(inputs)), target).mean()):
                return
        drawn = torch.from_numpy(run.batch.rng.random(len(run.held["other"])) < self.restore_prob)
        restored = run.parts(drawn.to(run.device))
        for name, weights in student.items():
            teacher[name].lerp_(weights, 1 - self.ema_decay)  # weight-averaged teacher
            weights.copy_(torch.where(restored[name], source[name], weights))  # stochastic restoration

    def _target(self, run: LearningRun, inputs: torch.Tensor) -> torch.Tensor:
        """Return the teacher's outputs, averaged over views where the source is not confident."""
        plain, confident = (self._outputs(run, name, inputs) for name in ("teacher", "source"))
        confidence = samples_of(confident).softmax(dim=1).amax(dim=1).mean()
        views: Views = self.views if plain.dim() == 2 or self.views == "none" else "colour"
        if not self.augmentations or views == "none" or bool(confidence >= self.confidence_threshold):
            return plain
        drawn = (augment(inputs, run.batch.rng, views) for _ in range(self.augmentations))
        outputs = [self._outputs(run, "teacher", view) for view in drawn]
        return sum(outputs[1:], outputs[0]) / len(outputs)

    def _outputs(self, run: LearningRun, name: str, inputs: torch.Tensor) -> torch.Tensor:
        """Run the network with the weights of a name; in `edgebench` with the source's batch-norm statistics."""
        with run.using(run.notes[name]), run.source_statistics() if self.variant == "edgebench" else nullcontext():
            return run.outputs_of(inputs)
