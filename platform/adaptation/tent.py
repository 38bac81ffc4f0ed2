"""Tent: scales and shifts of batch norms learn to make the network's own answers less uncertain.

Differs from the paper: mini-batches of a phase hold no frame twice, only batch norms leave evaluation mode, and a step
that leaves the finite numbers is undone. `episodic` resets at boundaries between domains, not before each batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation.base import Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.stream import (
    NO_STEPS,
    Memory,
    OnStream,
    Rows,
    Steps,
    answer_by,
    by_name,
    descend,
    entropies,
    flattened,
    inputs,
    mini_batches,
    part_learning,
    unfit,
    why_undone,
)
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes
from driftlab.platform.tasks.tasks import Task

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.parts import Passed
    from driftlab.platform.training.descent import Rule


@dataclass(frozen=True)
class Tent(OnStream):
    """Minimise the entropy of the answers by the scales and shifts of batch norms."""

    answers: Annotated[Literal["now", "batch"], Means("whether a frame is answered at once or with its batch")] = (
        "batch"
    )
    variant: Annotated[
        Literal["original", "run"],
        Means("statistics of batch norms: of the batch alone, or stored ones that follow it"),
    ] = "original"
    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "adam"
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size")] = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of sgd")] = 0.9
    beta1: Annotated[float, Ge(0), Lt(1), Means("decay of adam's first moment")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Means("decay of adam's second moment")] = 0.999
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms, in variant run")
    ] = 0.1
    iterations: Annotated[int, Ge(1), Means("steps of a phase")] = 10
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 50

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Answer by statistics of the batch, or of each frame alone where answers do not wait; `run` by stored ones."""
        from driftlab.platform.networks.parts import by_batch

        if self.variant == "run":
            return super().answer(model, state, batch)
        return answer_by(by_batch(model, keeps=False), model, state, batch, alone=self.answers == "now")

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        learning = [] if (why := unfit(model, batch)) else _scales_and_shifts(model)
        why = why or _no_entropy(batch.task) or ("" if learning else "its batch norms have nothing that learns")
        if why:
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, learning, lessons, at_once=phase.on_stream and self.answers == "batch")

    def _learn(
        self, model: nn.Module, state: Memory, batch: Batch, learning: list[str], lessons: list[Rows], *, at_once: bool
    ) -> Adapted:
        """Make the steps; the outputs before the first one are the answers where those look at the same batch."""
        from driftlab.platform.networks.parts import coordinates, copied, put_back
        from driftlab.platform.networks.vector import layout_of
        from driftlab.platform.training.descent import Descent

        before, layout, done, rule = copied(model, state.source), layout_of(model), Steps(), self._rule()
        outputs: list[torch.Tensor] = []
        with part_learning(model, learning, keeps=self.variant == "run", momentum=self.bn_momentum) as (flat, passed):
            walk = Descent(rule, flat.weights, flattened(state.moments, flat.layout, rule.moments), state.steps)

            def loss_of(rows: Rows) -> torch.Tensor:
                outputs[1:] = [model(inputs(model, batch, rows))]
                return entropies(outputs[-1]).mean()

            def step() -> None:
                walk.step(flat.gradients)
                flat.gradients.zero_()

            descend(lessons, loss_of, step, done)
            after = replace(state, moments=by_name(walk.moments(), flat.layout), steps=walk.steps)
        work = done.passes(after, _owners(passed, learning))
        at_once = at_once and self.variant == "original"
        answers = batch.task.answers(outputs[0].detach(), *batch.images.shape[1:3]) if at_once else None
        if why := why_undone(model, after, passed, done):
            put_back(model, before)
            return Adapted(state, skipped=why, work=work, answers=answers)
        changed = coordinates(layout, learning)
        return Adapted(after, len(done.losses), tuple(done.losses), changed, work=work, answers=answers)

    def _rule(self) -> Rule:
        from driftlab.platform.training.descent import Adam, Momentum

        if self.optimiser == "sgd":
            return Momentum(self.learning_rate, self.momentum)
        return Adam(self.learning_rate, self.beta1, self.beta2)


def _no_entropy(task: Task) -> str:
    """Boxes come from a score per class and place, each for itself: they are no distribution over classes."""
    return "detections are no distribution over classes and have no entropy" if task.name == "detection" else ""


def _scales_and_shifts(model: nn.Module) -> list[str]:
    """Name what can learn in batch norms."""
    from driftlab.platform.networks.parts import norm_state
    from driftlab.platform.networks.vector import layout_of

    spans = layout_of(model).spans
    return [name for name in norm_state(model) if name in spans]


def _owners(passed: Passed, learning: list[str]) -> list[str]:
    """Name the batch norms that ran and learn."""
    owners = {name.rpartition(".")[0] for name in learning}
    return [name for name in passed.ran if name in owners]
