"""What members share that walk down a loss of their own with many weights, and keep arrays between phases."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Lt

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory
from driftlab.platform.adaptation.stream import Remembering
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.descent import Rule
    from driftlab.platform.networks.vector import Flat


class LossWalk:
    """The steps of one call."""

    def __init__(self, rule: Rule, flat: Flat, state: MethodMemory) -> None:
        from driftlab.platform.networks.training.descent import Descent

        self._flat, self._count = flat, rule.moments
        moments = stream.flatten_moments(state.moments, flat.layout, self._count)
        self._descent = Descent(rule, flat.weights, moments, state.steps if state.moments else 0)

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, rows: stream.Rows, done: stream.WorkLog) -> torch.Tensor:
        """Return the loss of some frames, and note passes beside the one through them."""

    def step(self) -> None:
        """Apply the gradients."""
        self._descent.step(self._flat.gradients)
        self._flat.gradients.zero_()

    def moments(self) -> tuple[Weights, ...]:
        """Return the optimiser's moments by parameter."""
        return stream.split_by_name(self._descent.moments(), self._flat.layout)

    def held(self, state: MethodMemory) -> Weights:
        """Return the member's arrays after the steps."""
        return state.held


@dataclass(frozen=True)
class Walking(Remembering):
    """Base of these members."""

    iterations: stream.PhaseSteps = 50
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 32
    learning_rate: stream.StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    bn_momentum: stream.NormMomentum = 0.1

    def changes(self, model: nn.Module) -> list[str]:
        return list(model.state_dict())

    @abstractmethod
    def unfit(self, model: nn.Module, batch: Batch, state: MethodMemory) -> str:
        """Say why nothing can be learned from a batch; nothing if it can."""

    @abstractmethod
    def learns_of(self, model: nn.Module) -> list[str]:
        """Name the parameters that learn."""

    @abstractmethod
    def begin_walk(self, flat: Flat, state: MethodMemory) -> LossWalk:
        """Prepare the steps of a call."""

    def walk(self, model: nn.Module, state: MethodMemory, batch: Batch, phase: Phase) -> Adapted:
        """Make the steps, or undo them where they went wrong; a phase begins without moments."""
        from driftlab.platform.networks.module_utils import coordinates, copy_entries, record_layers, restore_entries
        from driftlab.platform.networks.vector import layout_of

        if why := self.unfit(model, batch, state):
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(stream.mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=stream.NO_STEPS, work=Passes())
        model.eval()
        before, layout, done = copy_entries(model, state.source), layout_of(model), stream.WorkLog()
        names = self.learns_of(model)
        learning = stream.part_learning(model, names, keeps=True, momentum=self.bn_momentum)
        with record_layers(model) as ran, learning as (flat, passed):
            steps = self.begin_walk(flat, state if phase.on_stream else replace(state, moments=()))
            stream.descend(lessons, lambda rows: steps.loss(model, batch, rows, done), steps.step, done)
            after = replace(state, moments=steps.moments(), steps=state.steps + len(done.losses))
            after = replace(after, held=steps.held(after))
        work = done.passes(after, stream.owners_of(names, ran))
        if why := stream.invalid_reason(model, after, passed, done):
            restore_entries(model, before)
            return Adapted(state, skipped=why, work=work)
        after = after if phase.on_stream else replace(after, moments=())
        return Adapted(after, len(done.losses), tuple(done.losses), coordinates(layout, names), work=work)
