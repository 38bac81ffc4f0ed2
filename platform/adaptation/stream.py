"""What members share that learn without labels, on the stream or in phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import NOTHING, Adaptation, Adapted, Answered, Batch, Phase
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.parts import Passed
    from driftlab.platform.networks.vector import Flat, Layout

MAX_FRAMES = 4096  # of one batch of the stream: they all go through the network at once
NO_FRAMES, NO_NORMS, NO_STEPS = "no frames", "the network has no batch norm", "no steps were asked for"
Rows = npt.NDArray[np.int64]
StreamBatch = Annotated[int, Ge(1), Le(MAX_FRAMES), Means("frames of one batch of the stream", "frames")]


@dataclass(frozen=True, eq=False)
class Memory:
    """What a member remembers: what it changes as the source network has it, and its optimiser."""

    source: Weights
    moments: tuple[Weights, ...] = ()  # by parameter, so that another network can go on with what fits
    steps: int = 0  # since the beginning
    head: str | None = None  # the network's last layer, where the member asked for it

    @property
    def kept_bytes(self) -> int:
        """Count the copies of the source and of what held before the update, and the moments."""
        return sum(
            times * value.nbytes
            for times, part in ((2, self.source), *((1, moment) for moment in self.moments))
            for value in part.values()
        )


@dataclass
class Steps:
    """What was computed, as it happens."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def passes(self, state: Memory, trained: Iterable[str] = (), kept_bytes: int = 0) -> Passes:
        """Account for it."""
        kept_bytes += state.kept_bytes
        return Passes(tuple(self.forward), tuple(self.backward), tuple(trained), kept_bytes)


@dataclass(frozen=True)
class OnStream(Adaptation):
    """A member that can learn from the stream as it comes; alone it leaves batch norms as they are."""

    stream_batch: StreamBatch = 32
    learns: Annotated[
        Literal["instead", "beside"], Means("whether learning replaces answering or shares the machine")
    ] = "instead"
    answers: Annotated[Literal["now", "batch"], Means("whether a frame is answered at once or with its batch")] = "now"
    episodic: Annotated[bool, Means("whether a told boundary between domains resets what was learned")] = False

    labels = "none"

    def changes(self, model: nn.Module) -> list[str]:
        """Name what the member may change of the state dict."""
        from driftlab.platform.networks.parts import norm_state

        return norm_state(model)

    def prepare(self, model: nn.Module, pack: Weights = NOTHING, *, go_on: Any = None) -> Memory:
        """Copy what may change; of the optimiser before, keep what fits this network by name and shape."""
        from driftlab.platform.networks.parts import copied

        model.eval()
        source = copied(model, self.changes(model))
        if go_on is None:
            return Memory(source)
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        moments = tuple(
            {name: value for name, value in moment.items() if shapes.get(name) == value.shape}
            for moment in go_on.moments
        )
        return Memory(source, moments, go_on.steps if any(moments) else 0)

    def reset(self, model: nn.Module, state: Any) -> Memory:
        """Return to the source network, with an optimiser that has seen nothing."""
        from driftlab.platform.networks.parts import put_back

        put_back(model, state.source)
        return OnStream.prepare(self, model)


def unfit(model: nn.Module, batch: Batch) -> str:
    """Say why a member of batch norms cannot learn from this at all."""
    from driftlab.platform.networks.parts import batch_norms

    return NO_FRAMES if not len(batch.images) else "" if batch_norms(model) else NO_NORMS


def mini_batches(batch: Batch, phase: Phase, size: int, iterations: int) -> Iterator[Rows]:
    """Draw as many mini-batches as the phase has steps, each without replacement; on the stream one of everything."""
    frames = len(batch.images)
    count = iterations if phase.iterations is None else phase.iterations
    if phase.on_stream:
        return iter([np.arange(frames)] * min(count, 1))
    return (batch.rng.choice(frames, size=min(size, frames), replace=False) for _ in range(count))


def groups(frames: int, phase: Phase, size: int) -> list[Rows]:
    """Cut frames into groups in their order, the whole of them on the stream; a last one of a single frame is dropped.

    A phase with more steps than groups begins again at the first one.
    """
    if phase.on_stream:
        return [np.arange(frames)] * min(1 if phase.iterations is None else phase.iterations, 1)
    cut = [np.arange(start, min(start + size, frames)) for start in range(0, frames, size)]
    if len(cut) > 1 and len(cut[-1]) == 1 < size:
        cut.pop()
    return cut if phase.iterations is None else list(islice(cycle(cut), phase.iterations))


def follow(
    model: nn.Module, state: Memory, batch: Batch, parts: Sequence[Rows], *, momentum: float | None, anew: bool = False
) -> Adapted:
    """Let the statistics of batch norms follow groups of frames: with a momentum, or (None) as their average."""
    import torch

    from driftlab.platform.networks.parts import batch_norms, by_batch, copied, put_back

    before, done = copied(model, state.source), Steps()
    model.eval()
    for norm in batch_norms(model).values() if anew else ():
        norm.reset_running_stats()
    with by_batch(model, keeps=True, momentum=momentum) as passed, torch.no_grad():
        for rows in parts:
            model(inputs(model, batch, rows))
            done.forward.append(len(rows))
    if why := why_undone(model, state, passed, done):
        put_back(model, before)
        return Adapted(state, skipped=why, work=done.passes(state))
    return Adapted(state, iterations=len(parts), work=done.passes(state))


@contextmanager
def part_learning(
    model: nn.Module, names: Sequence[str], *, keeps: bool, momentum: float
) -> Iterator[tuple[Flat, Passed]]:
    """Bind these parameters to one vector while batch norms look at the batch."""
    from driftlab.platform.networks.parts import by_batch, only_learning
    from driftlab.platform.networks.vector import bound

    with only_learning(model, names), bound(model) as flat, by_batch(model, keeps=keeps, momentum=momentum) as passed:
        yield flat, passed


def descend(
    lessons: Iterable[Rows], loss_of: Callable[[Rows], torch.Tensor], step: Callable[[], None], done: Steps
) -> None:
    """Step after step until the lessons or the finite numbers end; `step` finds the gradients where they belong."""
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
    statistics: AbstractContextManager[Any], model: nn.Module, state: Memory, batch: Batch, *, alone: bool
) -> Answered:
    """Answer with batch norms that look at the whole batch, or at each frame alone."""
    from driftlab.platform.networks.predict import device_of, predict

    frames = len(batch.images)
    size = 1 if alone else max(frames, 1)
    with statistics:
        answers = predict(model, batch.images, task=batch.task, batch=size, device=device_of(model))
    return Answered(answers, state, Passes((size,) * (frames // size)))


def inputs(model: nn.Module, batch: Batch, rows: Rows) -> torch.Tensor:
    """Bring frames to where the model computes."""
    from driftlab.platform.networks.predict import device_of, to_input

    return to_input(batch.images[rows]).to(device_of(model))


def entropies(outputs: torch.Tensor) -> torch.Tensor:
    """Say how undecided each output is, in nats: per frame, or per pixel."""
    from torch.nn import functional as F

    logs = F.log_softmax(outputs, dim=1)  # p * log(p) would be NaN where a probability is 0
    return -(logs.exp() * logs).sum(dim=1)


def flattened(moments: Sequence[Weights], layout: Layout, count: int) -> tuple[npt.NDArray[Any], ...]:
    """Bring moments by name into the order of a vector; those that are not known yet are zero."""
    zeros = [np.zeros(shape, dtype=layout.dtype) for shape in layout.shapes]
    given = (*moments, *({},) * (count - len(moments)))
    return tuple(
        np.concatenate([moment.get(name, zero).reshape(-1) for name, zero in zip(layout.names, zeros, strict=True)])
        for moment in given
    )


def by_name(vectors: Iterable[npt.NDArray[Any]], layout: Layout) -> tuple[Weights, ...]:
    """Take vectors apart again."""
    named = list(zip(layout.names, layout.shapes, strict=True))
    return tuple({name: vector[layout.spans[name]].reshape(shape) for name, shape in named} for vector in vectors)


def why_undone(model: nn.Module, state: Memory, passed: Passed, done: Steps) -> str:
    """Say what makes an update worthless: batches too small for a batch norm, or numbers that are not finite."""
    from driftlab.platform.networks.parts import is_finite

    if passed.starved:
        return f"batch norm {next(iter(passed.starved))} was given one value per channel: more frames are needed"
    if not all(map(math.isfinite, done.losses)):
        return f"not finite after {len(done.losses)} iterations, loss {done.losses[-1]}"
    if not is_finite(model, state.source) or not all(np.isfinite(v).all() for m in state.moments for v in m.values()):
        return f"not finite after {len(done.forward)} iterations"
    return ""
