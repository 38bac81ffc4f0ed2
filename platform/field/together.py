"""Train several networks of one architecture as one batch.

Their weights are rows of one matrix: a step has one forward and one backward pass for all of them. Each network keeps
its own state and draws its own mini-batches, so its result is that of training alone up to the order of sums. A loss
that is not finite stays in its row.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from driftlab.datasets.frames import NO_CLASS
from driftlab.platform.adaptation import distill
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import read_losses
from driftlab.platform.adaptation.distill import Distill, DistillState
from driftlab.platform.networks import vector
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.taps import Tap
from driftlab.platform.networks.tasks.tasks import TASKS, TaskLabels
from driftlab.platform.networks.training.descent import Descent

Images = npt.NDArray[np.uint8]
STRATEGIES = ("gradient_guided", "random", "full")  # they choose coordinates before the first forward pass
TOGETHER = (TASKS["segmentation"], TASKS["classification"])


def key_of(member: Any, model: nn.Module, batch: Batch, phase: Phase) -> Hashable | None:
    """Return a key that is equal for networks that can train together; None for one that trains alone."""
    if type(member) is not Distill or member.strategy not in STRATEGIES or batch.task not in TOGETHER:
        return None
    if phase.stop_score is not None or batch.labels is None or not len(batch.images):
        return None
    held = tuple((name, tuple(one.shape), one.dtype, one.device) for name, one in model.state_dict().items())
    learns = tuple(one.requires_grad for one in model.parameters())
    return member, phase, batch.task.name, batch.images.shape[1:], repr(model), held, learns


def adapt_together(
    members: Sequence[Distill],
    models: Sequence[nn.Module],
    states: Sequence[DistillState],
    batches: Sequence[Batch],
    phases: Sequence[Phase],
) -> list[Adapted]:
    """Run a phase of each member on its own model; the keys of all are equal."""
    with ExitStack() as stack:
        for model in models:
            model.eval()
        flats = [stack.enter_context(vector.bind_vector(model)) for model in models]
        weights = torch.stack([flat.weights for flat in flats])
        before = weights.clone()
        walks = [_Walk(*each) for each in zip(members, models, flats, states, batches, phases, before, strict=True)]
        try:
            for walk, row in zip(walks, weights, strict=True):
                walk.begin(row)
            _train(_Stack(models, flats[0].layout), weights, walks)
            return [walk.end() for walk in walks]
        except BaseException:
            for walk in walks:
                walk.flat.weights.copy_(walk.before)
            raise


def _train(forward: _Stack, weights: Tensor, walks: Sequence[_Walk]) -> None:
    """Step until no network has a mini-batch left; nothing is read from the device."""
    leaf = weights.detach().requires_grad_()  # shares the memory that the steps change
    leaf.grad = torch.zeros_like(weights)
    classes = forward.classes(walks[0].batch.images[:1])
    draws = [walk.draw(classes) for walk in walks]
    while sum(next(draw) for draw in draws):  # every network draws
        loss = _losses(forward(leaf, [walk.images for walk in walks]), [walk.labels for walk in walks])
        leaf.grad.zero_()
        torch.autograd.backward(loss, torch.ones_like(loss))
        for row, walk in enumerate(walks):
            if not walk.over:
                walk.step(loss.detach()[row], leaf.grad[row])


@dataclass
class _Walk:
    """The phase of one network; after its last mini-batch the row of that one is computed and not used."""

    member: Distill
    model: nn.Module
    flat: vector.Flat
    state: DistillState
    batch: Batch
    phase: Phase
    before: Tensor
    drawn: int = 0  # mini-batches
    over: bool = False
    losses: list[Tensor] = field(default_factory=list)

    def begin(self, row: Tensor) -> None:
        """Choose coordinates, and start at the weights of this row."""
        member = self.member
        self.undone = distill._restart(self.flat, self.state, restarts=member.restart_each_phase)
        self.mask = member._select(self.model, self.flat, self.state, self.batch)
        self.row = row.copy_(self.flat.weights)
        self.descent = Descent(member._rule(), row, self.state.moments, self.state.steps)
        self.descent.restrict(self.mask)

    def draw(self, classes: int) -> Iterator[bool]:
        """Draw the next mini-batch with a label that counts, and yield whether there was one."""
        count = self.member.iterations if self.phase.iterations is None else self.phase.iterations
        for self.drawn in range(1, count + 1):
            rows = self.member._draw(self.batch, self.phase)
            self.images, self.labels = self.batch.images[rows], self.batch.labels[rows]  # type: ignore[index]
            if self.batch.task.usable(self.labels, classes).any():
                yield True
        if not count:
            self.images, self.labels = self.batch.images[:1], self.batch.labels[:1]  # type: ignore[index]
        self.over = True
        while True:
            yield False

    def step(self, loss: Tensor, gradient: Tensor) -> None:
        self.losses.append(loss)
        self.descent.step(gradient)

    def end(self) -> Adapted:
        """Write the weights to the model; a phase that left the finite numbers is undone."""
        losses = read_losses(self.losses)
        done = self.member._done(self.state, self.member.batch, self.drawn, losses)
        if losses and math.isfinite(losses[-1]) and self.descent.is_finite():
            self.flat.weights.copy_(self.row)
            walk = self.descent
            after = DistillState(walk.moments(), walk.steps, walk.update(), self.state.start, self.mask)
            return Adapted(after, changed=self.mask | self.undone, **done)
        self.flat.weights.copy_(self.before)
        why = f"not finite after {len(losses)} iterations, loss {losses[-1]}" if losses else "no label counts"
        return Adapted(self.state, skipped=why, passes=done["passes"])


class _Stack:
    """The forward pass of all networks, each on its own images."""

    def __init__(self, models: Sequence[nn.Module], layout: vector.Layout) -> None:
        self._layout, self._bare = layout, _without_taps(models[0])
        fixed = [{name: one.detach() for name, one in _fixed(model, layout)} for model in models]
        self._fixed = {name: torch.stack([each[name] for each in fixed]) for name in fixed[0]}
        self._forward: Callable[..., Tensor] = vmap(self._one)

    def __call__(self, weights: Tensor, images: Sequence[Images]) -> Tensor:
        """Return the outputs [n, batch, ...] for rows of weights."""
        every = to_input(np.concatenate(images)).to(weights.device)
        return self._forward(weights, self._fixed, every.unflatten(0, (len(images), -1)))

    def classes(self, images: Images) -> int:
        """Return the number of classes in an output."""
        with torch.inference_mode():
            output: Tensor = self._bare(to_input(images).to(next(self._bare.parameters()).device))
        return output.shape[1]

    def _one(self, row: Tensor, fixed: dict[str, Tensor], images: Tensor) -> Tensor:
        spans, shapes = self._layout.spans, dict(zip(self._layout.names, self._layout.shapes, strict=True))
        weights = {name: row[spans[name]].view(shapes[name]) for name in self._layout.names}
        output: Tensor = functional_call(self._bare, {**weights, **fixed}, (images,))
        return output


def _fixed(model: nn.Module, layout: vector.Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers and the weights that do not learn."""
    yield from model.named_buffers()
    yield from ((name, one) for name, one in model.named_parameters() if name not in layout.spans)


def _without_taps(model: nn.Module) -> nn.Module:
    """Return a copy whose passes are not counted for the session of the calling thread."""
    bare = copy.deepcopy(model)
    for module in bare.modules():
        hooks = module._forward_hooks  # torch has no public list of hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, Tap)]:
            del hooks[key]
    return bare


def _losses(output: Tensor, labels: Sequence[TaskLabels]) -> Tensor:
    """Return the mean loss over the usable labels of each network."""
    classes = output.shape[2]
    given = np.stack(labels).astype(np.int64)
    counts = (given >= 0) & (given < classes)
    target = torch.from_numpy(np.where(counts, given, NO_CLASS)).to(output.device)
    each = F.cross_entropy(output.flatten(0, 1), target.flatten(0, 1), ignore_index=NO_CLASS, reduction="none")
    number = (target != NO_CLASS).flatten(1).sum(dim=1).clamp(min=1)
    return each.view(len(labels), -1).sum(dim=1) / number
