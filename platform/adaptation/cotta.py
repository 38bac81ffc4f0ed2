"""CoTTA: a student learns from the average of its own past, and some of its weights return to the source at each step.

The network that answers is the average, the teacher; the state holds the student. In variant `edgebench` the network is
the student, whose batch norms keep statistics, and the state holds the teacher.

Differs from the paper: a batch is answered by the teacher itself and views count for the lesson alone; there are 4 of
them, computed where they are used, and none is mirrored unless `views` says so; in segmentation they change colours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.augment import Views, augment
from driftlab.platform.adaptation.base import Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.batches import without_entropy
from driftlab.platform.adaptation.memory import MethodMemory
from driftlab.platform.adaptation.objectives import samples_of
from driftlab.platform.adaptation.stream import Remembering
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.module_utils import NormRecord
    from driftlab.platform.networks.vector import Flat


@dataclass(frozen=True)
class CoTta(Remembering):
    """Follow a teacher that is the average of past students, and restore weights at random."""

    answers: stream.AnswerTime = "batch"
    variant: Annotated[Literal["original", "edgebench"], Means("whether the teacher answers, or the student")] = (
        "original"
    )
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of adam")] = 1e-3
    memory: Annotated[float, Ge(0), Le(1), Means("weight of the past in the teacher, at each step")] = 0.999
    restore: Annotated[float, Ge(0), Le(1), Means("share of the weights that return to the source at a step")] = 0.01
    confidence: Annotated[
        float, Ge(0), Le(1), Means("mean confidence of the source below which the teacher looks at views")
    ] = 0.92
    count: Annotated[int, Ge(0), Means("views of a frame")] = 4
    views: Annotated[Views, Means("what a view changes; of label maps only the colour")] = "all"
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms, in variant edgebench")
    ] = 0.1
    iterations: stream.PhaseSteps = 10
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 50

    tasks = ("segmentation", "classification")

    def changes(self, model: nn.Module) -> list[str]:
        return list(model.state_dict())

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        from driftlab.platform.networks.vector import read

        return {"other": read(model)}

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Predict by statistics of the batch, or of each frame alone where answers do not wait; `edgebench`: stored."""
        from driftlab.platform.networks.module_utils import normalise_by_batch

        if self.variant == "edgebench":
            return super().answer(model, state, batch)
        return stream.answer_by(
            normalise_by_batch(model, keeps=False), model, state, batch, alone=self.answers == "now"
        )

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.networks.vector import layout_of

        why = without_entropy(batch.task) if len(batch.images) else stream.NO_FRAMES
        why = why or ("" if layout_of(model).size else "the network has nothing that learns")
        if why:
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(stream.mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=stream.NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, lessons, at_once=phase.on_stream and self.answers == "batch")

    def _learn(
        self, model: nn.Module, state: MethodMemory, batch: Batch, lessons: list[stream.Rows], *, at_once: bool
    ) -> Adapted:
        from driftlab.platform.networks.module_utils import copy_entries, record_layers, restore_entries

        before, names = copy_entries(model, state.source), [name for name, _ in model.named_parameters()]
        keeps = self.variant == "edgebench"
        learning = stream.part_learning(model, names, keeps=keeps, momentum=self.bn_momentum)
        with record_layers(model) as ran, learning as (flat, passed):
            walk = _Walk(self, model, batch, state, flat, passed)
            for rows in lessons:
                if not walk.lesson(rows):
                    break
            after = walk.state()
        work = walk.done.passes(after, stream.owners_of(flat.layout.names, ran))
        answers = None
        if at_once and not keeps and walk.first is not None:
            answers = batch.task.answers(walk.first, *batch.images.shape[1:3])
        if why := stream.invalid_reason(model, after, passed, walk.done):
            restore_entries(model, before)
            return Adapted(state, skipped=why, work=work, answers=answers)
        changed = np.ones(flat.layout.size, dtype=bool)
        return Adapted(after, len(lessons), tuple(walk.done.losses), changed, work=work, answers=answers)


class _Walk:
    """The steps of one call. The network's weights are one vector, into which teacher, student and source alternate."""

    def __init__(
        self, member: CoTta, model: nn.Module, batch: Batch, state: MethodMemory, flat: Flat, passed: NormRecord
    ) -> None:
        import torch

        from driftlab.platform.networks.module_utils import batch_norms
        from driftlab.platform.networks.training.descent import Adam, Descent

        self.done = stream.WorkLog()
        self.first: torch.Tensor | None = None  # the teacher's first outputs
        self._member, self._model, self._batch, self._state = member, model, batch, state
        self._flat, self._passed, self._running = flat, passed, member.variant == "edgebench"
        here, other = flat.weights.clone(), torch.tensor(state.held["other"], device=flat.weights.device)
        self.student, self.teacher = (here, other) if self._running else (other, here)
        source = [state.source[name].reshape(-1) for name in flat.layout.names]
        self._source = torch.tensor(np.concatenate(source), device=flat.weights.device)
        self._norms = {f"{norm}.{own}" for norm in batch_norms(model) for own in ("running_mean", "running_var")}
        moments = stream.flatten_moments(state.moments, flat.layout, 2)
        self._descent = Descent(Adam(member.learning_rate), self.student, moments, state.steps)

    def lesson(self, rows: stream.Rows) -> bool:
        """Make one step; False where the loss is not finite."""
        import torch

        inputs = stream.device_inputs(self._model, self._batch, rows)
        target = self._target(inputs)
        self._flat.weights.copy_(self.student)
        logs = samples_of(self._model(inputs)).log_softmax(dim=1)
        self.done.forward.append(len(rows))
        loss = -(target * logs).sum(dim=1).mean()
        self.done.losses.append(float(loss.detach()))
        if not np.isfinite(self.done.losses[-1]):
            return False
        torch.autograd.backward(loss)
        self.done.backward.append(len(rows))
        self._descent.step(self._flat.gradients)
        self._flat.gradients.zero_()
        self.teacher.lerp_(self.student, 1 - self._member.memory)
        back = torch.from_numpy(self._batch.rng.random(len(self.student)) < self._member.restore)
        self.student.copy_(torch.where(back.to(self.student.device), self._source, self.student))
        self._flat.weights.copy_(self.student if self._running else self.teacher)
        return True

    def state(self) -> MethodMemory:
        """Return the state after the steps so far."""
        other = self.teacher if self._running else self.student
        moments = stream.split_by_name(self._descent.moments(), self._flat.layout)
        held = {"other": np.array(other.cpu().numpy())}
        return replace(self._state, moments=moments, steps=self._descent.steps, held=held)

    def _target(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the teacher's shares of the classes: of views where the source is unsure, else of the frames."""
        import torch

        member = self._member
        with torch.no_grad():
            plain = self._run(self.teacher, inputs)
            self.first = plain if self.first is None else self.first
            sure = samples_of(self._run(self._source, inputs)).softmax(dim=1).amax(dim=1).mean()
            views: Views = member.views if plain.dim() == 2 or member.views == "none" else "colour"
            if not member.count or views == "none" or bool(sure >= member.confidence):
                return samples_of(plain).softmax(dim=1)
            seen = [self._run(self.teacher, augment(inputs, self._batch.rng, views)) for _ in range(member.count)]
            return samples_of(sum(seen[1:], seen[0]) / len(seen)).softmax(dim=1)

    def _run(self, weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Run the network with other weights; in `edgebench` with the source's statistics of batch norms."""
        from driftlab.platform.networks.module_utils import copy_entries, restore_entries

        self._flat.weights.copy_(weights)
        self.done.forward.append(len(inputs))
        if not self._running:
            outputs: torch.Tensor = self._model(inputs)
            return outputs
        kept = copy_entries(self._model, self._norms & self._state.source.keys())
        restore_entries(self._model, {name: self._state.source[name] for name in kept})
        with self._passed.resting():
            outputs = self._model(inputs)
        restore_entries(self._model, kept)
        return outputs
