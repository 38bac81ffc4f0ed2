"""The common parts of members that answer every frame, put it into a memory, and learn from the memory now and then."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.adaptation.banks import Bank, Item, images_of
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import scales_and_shifts
from driftlab.platform.adaptation.memory import MethodMemory, below, under
from driftlab.platform.adaptation.stream import (
    NO_STEPS,
    Remembering,
    Rows,
    WorkLog,
    device_inputs,
    flatten_moments,
    owners_of,
    split_by_name,
    split_groups,
    unfit_reason,
)
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.vector import Flat


@dataclass(frozen=True)
class OfBank(Remembering):
    """Base of members that learn scales and shifts of batch norms from a memory of frames."""

    capacity: Annotated[int, Ge(2), Le(4096), Means("frames in the memory", "frames")] = 64
    every: Annotated[int, Ge(1), Means("frames from one lesson to the next", "frames")] = 64
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of adam")] = 1e-3

    tasks = ("classification",)

    @abstractmethod
    def bank(self, classes: int, rng: np.random.Generator) -> Bank:
        """Return an empty memory."""

    @abstractmethod
    def look(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Predict the frames of a batch, before they enter the memory."""

    @abstractmethod
    def learn(self, visit: Visit) -> None:
        """Make a lesson of the memory."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        why = unfit_reason(model, batch) or whole_frames(type(self).__name__, batch)
        why = why or ("" if scales_and_shifts(model) else "its batch norms have nothing that learns")
        if why:
            return Adapted(state, skipped=why, work=Passes())
        parts = split_groups(len(batch.images), phase, self.stream_batch)
        if not parts:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        model.eval()
        return self._visit(model, state, batch, parts)

    def _visit(self, model: nn.Module, state: MethodMemory, batch: Batch, parts: list[Rows]) -> Adapted:
        from driftlab.platform.networks.module_utils import (
            coordinates,
            copy_entries,
            is_finite,
            record_layers,
            restore_entries,
        )
        from driftlab.platform.networks.vector import layout_of

        before, visit = copy_entries(model, state.source), Visit(self, model, state, batch)
        with record_layers(model) as ran:
            for rows in parts:
                if not visit.show(rows):
                    break
        work = visit.done.passes(after := visit.state(), owners_of(visit.learning, ran), visit.kept_bytes)
        share = sum(visit.stayed) / len(visit.stayed) if visit.stayed else None
        losses = tuple(visit.done.losses)
        if visit.broken or not all(map(math.isfinite, losses)) or not is_finite(model, state.source):
            restore_entries(model, before)
            why = visit.broken or f"not finite after {len(visit.done.forward)} passes"
            return Adapted(state, skipped=why, work=work, accepted=share)
        if not losses:
            left = self.every - int(after.held["since"])
            return Adapted(
                after, skipped=f"the memory fills; it learns after {left} more frames", work=work, accepted=share
            )
        changed = coordinates(layout_of(model), scales_and_shifts(model))
        return Adapted(after, len(losses), losses, changed, work=work, accepted=share)


class Visit:
    """One call: frames enter the memory one by one, with a lesson where one is due."""

    def __init__(self, member: OfBank, model: nn.Module, state: MethodMemory, batch: Batch) -> None:
        self.member, self.model, self.batch, self._state = member, model, batch, state
        self.held, self.moments, self.steps = dict(state.held), state.moments, state.steps
        self.done, self.stayed = WorkLog(), list[bool]()
        self.broken = ""
        self.learning = scales_and_shifts(model)
        self.kept_bytes = 0  # beside the state
        self._since = int(state.held["since"]) if "since" in state.held else 0
        self._bank: Bank | None = None

    @property
    def bank(self) -> Bank:
        assert self._bank is not None
        return self._bank

    def show(self, rows: Rows) -> bool:
        """Predict frames, then let them enter the memory."""
        import torch

        from driftlab.platform.adaptation.stream import entropies

        with torch.no_grad():
            outputs = self.member.look(self.model, device_inputs(self.model, self.batch, rows))
        self.done.forward.append(len(rows))
        if not bool(outputs.isfinite().all()):
            self.broken = "its predictions are not finite"
            return False
        if self._bank is None:
            self._bank = self.member.bank(outputs.shape[1], self.batch.rng)
            self._bank.restore(below("bank", self.held))
        doubts, labels = entropies(outputs).tolist(), outputs.argmax(dim=1).tolist()
        for row, label, doubt in zip(rows, labels, doubts, strict=True):
            self.stayed.append(self.bank.add(Item(self.batch.images[row], label, doubt)))
            self._since += 1
            if self._since >= self.member.every:
                self._since = 0
                self.member.learn(self)
        return not self.broken

    def inputs(self, items: list[Item]) -> torch.Tensor:
        """Return frames of the memory as inputs."""
        given = Batch(images_of(items), None, self.batch.rng, self.batch.task)
        return device_inputs(self.model, given, np.arange(len(items)))

    def descend(self, flat: Flat, loss: torch.Tensor, frames: int) -> bool:
        """Make a step of Adam along a loss; False where it is not finite."""
        import torch

        from driftlab.platform.networks.training.descent import Adam, Descent

        self.done.losses.append(float(loss.detach()))
        if not math.isfinite(self.done.losses[-1]):
            self.broken = f"its loss is {self.done.losses[-1]}"
            return False
        moments = flatten_moments(self.moments, flat.layout, 2)
        walk = Descent(Adam(self.member.learning_rate), flat.weights, moments, self.steps)
        torch.autograd.backward(loss)
        self.done.backward.append(frames)
        walk.step(flat.gradients)
        flat.gradients.zero_()
        self.moments, self.steps = split_by_name(walk.moments(), flat.layout), walk.steps
        return True

    def state(self) -> MethodMemory:
        """Return the state after the frames so far."""
        kept = {name: value for name, value in self.held.items() if not name.startswith("bank/")}
        held: Weights = {**kept, "since": np.array(self._since)}
        if self._bank is not None:
            held = {**held, **under("bank", self._bank.arrays())}
        return replace(self._state, moments=self.moments, steps=self.steps, held=held)


def whole_frames(name: str, batch: Batch) -> str:
    """Return why a member that names whole frames cannot learn from a batch; empty if it can."""
    return "" if batch.task.name == "classification" else f"{name} names whole frames, the task is {batch.task.name}"
