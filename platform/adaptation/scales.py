"""The common parts of members that train the scales and shifts of batch norms, one mini-batch at a time."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation.base import Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, as_tensors, own_arrays
from driftlab.platform.adaptation.stream import (
    NO_STEPS,
    AnswerTime,
    OnStream,
    PhaseSteps,
    Rows,
    StepSize,
    StreamMemory,
    WorkLog,
    answer_by,
    device_inputs,
    flatten_moments,
    invalid_reason,
    mini_batches,
    owners_of,
    part_learning,
    split_by_name,
    unfit_reason,
)
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.tasks.tasks import Task

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.descent import Rule
    from driftlab.platform.networks.vector import Flat

NONE_ACCEPTED = "nothing in the batch was fit to learn from"


@dataclass(frozen=True)
class OfScales(OnStream):
    """Base of members that descend a loss of their own along the scales and shifts of batch norms."""

    answers: AnswerTime = "batch"
    variant: Annotated[
        Literal["original", "run"],
        Means("statistics of batch norms: of the batch alone, or stored ones that follow it"),
    ] = "original"
    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "adam"
    learning_rate: StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of sgd")] = 0.9
    beta1: Annotated[float, Ge(0), Lt(1), Means("decay of adam's first moment")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Means("decay of adam's second moment")] = 0.999
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms, in variant run")
    ] = 0.1
    iterations: PhaseSteps = 10
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 50

    @abstractmethod
    def lesson(self, steps: Steps, rows: Rows) -> None:
        """Learn from one mini-batch: at most one step."""

    def trains(self, model: nn.Module) -> list[str]:
        """Name the parameters that learn."""
        return scales_and_shifts(model)

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Predict by statistics of the batch, or of each frame alone where answers do not wait; `run`: stored ones."""
        from driftlab.platform.networks.module_utils import normalise_by_batch

        if self.variant == "run":
            return super().answer(model, state, batch)
        return answer_by(normalise_by_batch(model, keeps=False), model, state, batch, alone=self.answers == "now")

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        learning = [] if (why := unfit_reason(model, batch)) else self.trains(model)
        why = why or without_entropy(batch.task) or ("" if learning else "its batch norms have nothing that learns")
        if why:
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, learning, lessons, at_once=phase.on_stream and self.answers == "batch")

    def _learn(
        self,
        model: nn.Module,
        state: StreamMemory,
        batch: Batch,
        learning: list[str],
        lessons: list[Rows],
        *,
        at_once: bool,
    ) -> Adapted:
        """Make the steps; the outputs before the first one are the answers where they use the same batch."""
        from driftlab.platform.networks.module_utils import coordinates, copy_entries, restore_entries
        from driftlab.platform.networks.vector import layout_of

        before, layout = copy_entries(model, state.source), layout_of(model)
        with part_learning(model, learning, keeps=self.variant == "run", momentum=self.bn_momentum) as (flat, passed):
            steps = Steps(model, batch, flat, state, self._rule())
            for rows in lessons:
                self.lesson(steps, rows)
                if steps.broken:
                    break
            after = steps.state()
        work = steps.done.passes(after, owners_of(learning, passed.ran))
        answers = None
        if at_once and self.variant == "original" and steps.first is not None:
            answers = batch.task.answers(steps.first, *batch.images.shape[1:3])
        told: dict[str, Any] = {"work": work, "answers": answers, "accepted": steps.accepted}
        if why := invalid_reason(model, after, passed, steps.done):
            restore_entries(model, before)
            return Adapted(state, skipped=why, **told)
        if not steps.made:
            restore_entries(model, before)
            return Adapted(state, skipped=NONE_ACCEPTED, **told)
        return Adapted(after, steps.made, tuple(steps.done.losses), coordinates(layout, learning), **told)

    def _rule(self) -> Rule:
        from driftlab.platform.networks.training.descent import Adam, Momentum

        if self.optimiser == "sgd":
            return Momentum(self.learning_rate, self.momentum)
        return Adam(self.learning_rate, self.beta1, self.beta2)


class Steps:
    """The steps of one call over a network whose learning weights are one vector, and a log of what was computed."""

    def __init__(self, model: nn.Module, batch: Batch, flat: Flat, state: StreamMemory, rule: Rule) -> None:
        self.model, self.flat, self.source = model, flat, state.source
        self.held = as_tensors(state.held, flat.weights.device) if isinstance(state, MethodMemory) else {}
        self.pack = state.pack if isinstance(state, MethodMemory) else {}
        self.done = WorkLog()
        self.first: torch.Tensor | None = None  # the first outputs
        self.made = 0
        self._batch, self._state, self._rule = batch, state, rule
        self._judged = self._fit = 0
        self._begin(state)

    @property
    def broken(self) -> bool:
        """Tell whether a loss was not finite."""
        return bool(self.done.losses) and not math.isfinite(self.done.losses[-1])

    @property
    def accepted(self) -> float | None:
        """Return the share of the judged samples that were fit to learn from; None where none were judged."""
        return self._fit / self._judged if self._judged else None

    def judge(self, fit: torch.Tensor) -> bool:
        """Count samples that were judged, and tell whether any of them is fit."""
        self._judged, self._fit = self._judged + fit.numel(), self._fit + int(fit.sum())
        return bool(fit.any())

    def outputs(self, rows: Rows) -> torch.Tensor:
        """Run the network on some frames of the batch."""
        outputs: torch.Tensor = self.model(device_inputs(self.model, self._batch, rows))
        self.done.forward.append(len(rows))
        self.first = outputs.detach() if self.first is None else self.first
        return outputs

    def backward(self, loss: torch.Tensor, rows: Rows, *, last: bool = True) -> bool:
        """Add a loss's gradients unless it is not finite; only the last one of a lesson counts as its loss."""
        import torch

        value = float(loss.detach())
        if last or not math.isfinite(value):
            self.done.losses.append(value)
        if not math.isfinite(value):
            return False
        torch.autograd.backward(loss)
        self.done.backward.append(len(rows))
        return True

    def step(self) -> None:
        """Apply the gradients."""
        self._walk.step(self.flat.gradients)
        self.flat.gradients.zero_()
        self.made += 1

    def learn(self, loss: torch.Tensor, rows: Rows) -> None:
        """Make a step along a loss."""
        if self.backward(loss, rows):
            self.step()

    def restart(self, *, empty: bool = True) -> None:
        """Return the network to the source, with an empty optimiser."""
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(self.model, self.source)
        if empty:
            self._begin(StreamMemory(self.source))

    def state(self) -> StreamMemory:
        """Return the state after the steps so far."""
        moments = split_by_name(self._walk.moments(), self.flat.layout)
        after = replace(self._state, moments=moments, steps=self._walk.steps)
        return replace(after, held=own_arrays(self.held)) if isinstance(after, MethodMemory) else after

    def _begin(self, state: StreamMemory) -> None:
        from driftlab.platform.networks.training.descent import Descent

        moments = flatten_moments(state.moments, self.flat.layout, self._rule.moments)
        self._walk = Descent(self._rule, self.flat.weights, moments, state.steps)


def samples_of(outputs: torch.Tensor) -> torch.Tensor:
    """Arrange outputs as [samples, classes]: a sample is a frame, or a pixel."""
    return outputs.movedim(1, -1).flatten(0, -2)


def without_entropy(task: Task) -> str:
    """Return why a task has no entropy: a detector scores each class and place separately, without a distribution."""
    return "detections are no distribution over classes and have no entropy" if task.name == "detection" else ""


def scales_and_shifts(model: nn.Module) -> list[str]:
    """Name the trainable parameters of batch norms."""
    from driftlab.platform.networks.module_utils import norm_state
    from driftlab.platform.networks.vector import layout_of

    spans = layout_of(model).spans
    return [name for name in norm_state(model) if name in spans]
