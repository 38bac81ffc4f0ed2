"""The common parts of members that learn without labels, on the stream or in phases."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Answered, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, StreamMemory
from driftlab.platform.adaptation.objectives import entropies as entropies
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.module_utils import NormRecord
    from driftlab.platform.networks.vector import Flat, Layout

MAX_FRAMES = 4096  # of one batch of the stream: all of them pass the network at once
NO_FRAMES, NO_NORMS, NO_STEPS = "no frames", "the network has no batch norm", "no steps were asked for"
Rows = npt.NDArray[np.int64]
StreamBatch = Annotated[int, Ge(1), Le(MAX_FRAMES), Means("frames of one batch of the stream", "frames")]
AnswerTime = Annotated[Literal["now", "batch"], Means("whether a frame is answered at once or with its batch")]
PhaseSteps = Annotated[int, Ge(1), Means("steps of a phase")]
NormMomentum = Annotated[float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms")]
StepSize = Annotated[float, Ge(0), Le(10), Means("step size")]


@dataclass
class WorkLog:
    """The computation of one call, recorded as it happens."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def passes(self, state: StreamMemory, trained: Iterable[str] = (), kept_bytes: int = 0) -> Passes:
        """Return it as counted passes."""
        kept_bytes += state.kept_bytes
        return Passes(tuple(self.forward), tuple(self.backward), tuple(trained), kept_bytes)


@dataclass(frozen=True)
class OnStream(Adaptation):
    """Base of members that can learn from the stream; by default batch norms stay unchanged."""

    stream_batch: StreamBatch = 32
    learns: Annotated[
        Literal["instead", "beside"], Means("whether learning replaces answering or shares the machine")
    ] = "instead"
    answers: AnswerTime = "now"
    episodic: Annotated[bool, Means("whether a told boundary between domains resets what was learned")] = False

    labels = "none"

    def changes(self, model: nn.Module) -> list[str]:
        """Name the entries of the state dict that the member may change."""
        from driftlab.platform.networks.module_utils import norm_state

        return norm_state(model)

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> StreamMemory:
        """Copy the entries that may change; keep the parts of the previous optimiser that fit by name and shape."""
        from driftlab.platform.networks.module_utils import copy_entries

        model.eval()
        source = copy_entries(model, self.changes(model))
        if go_on is None:
            return StreamMemory(source)
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        moments = tuple(
            {name: value for name, value in moment.items() if shapes.get(name) == value.shape}
            for moment in go_on.moments
        )
        return StreamMemory(source, moments, go_on.steps if any(moments) else 0)

    def reset(self, model: nn.Module, state: Any) -> StreamMemory:
        """Return to the source network with a fresh optimiser."""
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return OnStream.prepare(self, model)


class Remembering(OnStream):
    """Base of members with a `MethodMemory`."""

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Return the member's first arrays."""
        return {}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> MethodMemory:
        """Copy the source, and begin with the member's own arrays; those of another network do not apply."""
        first = super().prepare(model, go_on=go_on)
        kept, own = dict(pack), dict(self.begin(model, pack))
        return MethodMemory(first.source, first.moments, first.steps, None, kept, own)

    def reset(self, model: nn.Module, state: Any) -> MethodMemory:
        """Return to the source network with a fresh optimiser and fresh arrays."""
        super().reset(model, state)
        return self.prepare(model, state.pack)


@dataclass(frozen=True)
class OfStatistics(OnStream):
    """Base of members that only move the statistics of batch norms, group by group."""

    @abstractmethod
    def move(self, model: nn.Module, state: StreamMemory, batch: Batch, parts: Sequence[Rows], phase: Phase) -> Adapted:
        """Move the statistics along the groups of a batch that is fit for it."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Follow groups of `stream_batch` frames, or the full batch on the stream."""
        if why := unfit_reason(model, batch):
            return Adapted(state, skipped=why, work=Passes())
        parts = split_groups(len(batch.images), phase, self.stream_batch)
        if not parts:
            return Adapted(state, skipped=NO_STEPS, work=Passes())
        return self.move(model, state, batch, parts, phase)

    def work_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the forward passes of a network with batch norms."""
        parts = split_groups(frames, phase, self.stream_batch)
        return Passes(tuple(len(rows) for rows in parts if len(rows)), trained=())


def unfit_reason(model: nn.Module, batch: Batch) -> str:
    """Return why a member of batch norms cannot learn from this batch; empty if it can."""
    from driftlab.platform.networks.module_utils import batch_norms

    return NO_FRAMES if not len(batch.images) else "" if batch_norms(model) else NO_NORMS


def mini_batches(batch: Batch, phase: Phase, size: int, iterations: int) -> Iterator[Rows]:
    """Draw one mini-batch per step of the phase, each without replacement; on the stream one batch of all frames."""
    frames = len(batch.images)
    count = iterations if phase.iterations is None else phase.iterations
    if phase.on_stream:
        return iter([np.arange(frames)] * min(count, 1))
    return (batch.rng.choice(frames, size=min(size, frames), replace=False) for _ in range(count))


def split_groups(frames: int, phase: Phase, size: int) -> list[Rows]:
    """Split frames into consecutive split_groups, one group on the stream; a last group of a single frame is dropped.

    A phase with more steps than groups restarts at the first one.
    """
    if phase.on_stream:
        return [np.arange(frames)] * min(1 if phase.iterations is None else phase.iterations, 1)
    cut = [np.arange(start, min(start + size, frames)) for start in range(0, frames, size)]
    if len(cut) > 1 and len(cut[-1]) == 1 < size:
        cut.pop()
    return cut if phase.iterations is None else list(islice(cycle(cut), phase.iterations))


def follow_statistics(
    model: nn.Module,
    state: StreamMemory,
    batch: Batch,
    parts: Sequence[Rows],
    *,
    momentum: float | None,
    anew: bool = False,
) -> Adapted:
    """Let the statistics of batch norms follow groups of frames: with a momentum, or (None) as their average."""
    import torch

    from driftlab.platform.networks.module_utils import batch_norms, copy_entries, normalise_by_batch, restore_entries

    before, done = copy_entries(model, state.source), WorkLog()
    model.eval()
    for norm in batch_norms(model).values() if anew else ():
        norm.reset_running_stats()
    with normalise_by_batch(model, keeps=True, momentum=momentum) as passed, torch.no_grad():
        for rows in parts:
            model(device_inputs(model, batch, rows))
            done.forward.append(len(rows))
    if why := invalid_reason(model, state, passed, done):
        restore_entries(model, before)
        return Adapted(state, skipped=why, work=done.passes(state))
    return Adapted(state, iterations=len(parts), work=done.passes(state))


@contextmanager
def part_learning(
    model: nn.Module, names: Sequence[str], *, keeps: bool, momentum: float
) -> Iterator[tuple[Flat, NormRecord]]:
    """Bind these parameters to one vector while batch norms normalise by the batch."""
    from driftlab.platform.networks.module_utils import normalise_by_batch, train_only
    from driftlab.platform.networks.vector import bind_vector

    with (
        train_only(model, names),
        bind_vector(model) as flat,
        normalise_by_batch(model, keeps=keeps, momentum=momentum) as passed,
    ):
        yield flat, passed


def owners_of(parameters: Iterable[str], ran: Iterable[str]) -> list[str]:
    """Name the modules that ran and own some of these parameters, in running order."""
    owners = {name.rpartition(".")[0] for name in parameters}
    return [name for name in ran if name in owners]


def descend(
    lessons: Iterable[Rows], loss_of: Callable[[Rows], torch.Tensor], step: Callable[[], None], done: WorkLog
) -> None:
    """Make steps until the mini-batches end or the loss is not finite; `step` applies the gradients."""
    import torch

    for rows in lessons:
        loss = loss_of(rows)
        done.forward.append(len(rows))
        done.losses.append(float(loss.detach()))
        if not math.isfinite(done.losses[-1]):
            return
        torch.autograd.backward(loss)
        done.backward.append(len(rows))
        step()


def answer_by(
    statistics: AbstractContextManager[Any], model: nn.Module, state: StreamMemory, batch: Batch, *, alone: bool
) -> Answered:
    """Predict with batch norms that normalise by the full batch, or by each frame alone."""
    from driftlab.platform.networks.predict import device_of, predict

    frames = len(batch.images)
    size = 1 if alone else max(frames, 1)
    with statistics:
        answers = predict(model, batch.images, task=batch.task, batch=size, device=device_of(model))
    return Answered(answers, state, Passes((size,) * (frames // size)))


def device_inputs(model: nn.Module, batch: Batch, rows: Rows) -> torch.Tensor:
    """Return frames as inputs on the model's device."""
    from driftlab.platform.networks.predict import device_of, to_input

    return to_input(batch.images[rows]).to(device_of(model))


def flatten_moments(moments: Sequence[Weights], layout: Layout, count: int) -> tuple[npt.NDArray[Any], ...]:
    """Arrange moments by name in the order of a vector; missing ones are zero."""
    zeros = [np.zeros(shape, dtype=layout.dtype) for shape in layout.shapes]
    given = (*moments, *({},) * (count - len(moments)))
    return tuple(
        np.concatenate([moment.get(name, zero).reshape(-1) for name, zero in zip(layout.names, zeros, strict=True)])
        for moment in given
    )


def split_by_name(vectors: Iterable[npt.NDArray[Any]], layout: Layout) -> tuple[Weights, ...]:
    """Split vectors into arrays by name."""
    named = list(zip(layout.names, layout.shapes, strict=True))
    return tuple({name: vector[layout.spans[name]].reshape(shape) for name, shape in named} for vector in vectors)


def invalid_reason(model: nn.Module, state: StreamMemory, passed: NormRecord, done: WorkLog) -> str:
    """Return why an update is invalid: batches too small for a batch norm, or numbers that are not finite."""
    from driftlab.platform.networks.module_utils import is_finite

    if passed.starved:
        return f"batch norm {next(iter(passed.starved))} was given one value per channel: more frames are needed"
    if not all(map(math.isfinite, done.losses)):
        return f"not finite after {len(done.losses)} iterations, loss {done.losses[-1]}"
    if not is_finite(model, state.source) or not all(np.isfinite(v).all() for m in state.moments for v in m.values()):
        return f"not finite after {len(done.forward)} iterations"
    return ""
