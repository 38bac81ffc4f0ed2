"""DARTS (Liu et al., ICLR 2019): gradient-based search over softmax-weighted operators.

Operator weights train on one half of the frames, architecture parameters on the other, in alternating steps. First
order takes the architecture gradient at the current weights, second order at the weights after their next step, by
finite differences (Eq. 7 and 8). The operator with the largest architecture parameter is used at each stage.

Differs from the paper: an operator replaces a whole stage; the architecture takes fewer and larger steps; the virtual
step of the second order has no momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.searched import PathSearchScaling

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from driftlab.platform.networks.branched import Branched, MixedNetwork
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames, Rows, TrainingSchedule

    Loss = Callable[[], Tensor]

BETAS, DECAY = (0.5, 0.999), 1e-3  # of the architecture's optimiser
EPSILON = 0.01  # of the finite difference, divided by the norm of the gradient


@dataclass(frozen=True)
class Darts(PathSearchScaling):
    """DARTS (ICLR 2019): gradient-based search over softmax-weighted operators; run the argmax path."""

    order: Annotated[
        Literal["first", "second"], Means("architecture gradient at the current weights, or after their next step")
    ] = "first"
    architecture_learning_rate: Annotated[float, Gt(0), Le(10), Means("learning rate of the architecture")] = 0.01

    def find_path(self, branched: Branched, data: DataSplits, schedule: TrainingSchedule) -> Path:
        import torch

        from driftlab.platform.networks.branched import MixedNetwork
        from driftlab.platform.networks.predict import device_of
        from driftlab.platform.networks.training.descent import Adam, Optimiser
        from driftlab.platform.networks.training.training_loop import epochs

        rng = rng_for(data.seed, "scaling", "darts")
        train, val = halves(data.train, rng)
        mixed, device = MixedNetwork(branched), device_of(branched.stem)
        architecture = [torch.zeros(len(modules), device=device, requires_grad=True) for modules in branched.stages]
        optimiser = Optimiser(architecture, Adam(self.architecture_learning_rate, *BETAS))

        def loss_on(frames: LabelledFrames, rows: Rows) -> Tensor:
            shares = [one.softmax(dim=0) for one in architecture]
            return _loss(data, mixed, frames, rows, shares)

        def learn(rows: Rows) -> None:
            val_rows = rng.integers(len(val), size=len(rows))
            losses = (lambda: loss_on(train, rows), lambda: loss_on(val, val_rows))
            gradients = self._gradients(losses, list(mixed.parameters()), architecture)
            for parameter, gradient in zip(architecture, gradients, strict=True):
                parameter.grad = gradient.add(parameter.detach(), alpha=DECAY)
            optimiser.step()
            torch.autograd.backward(loss_on(train, rows), inputs=list(mixed.parameters()))

        for _ in epochs(mixed, replace(data, train=train), schedule, rng, learn=learn):
            pass
        return tuple(int(one.argmax()) for one in architecture)

    def _gradients(
        self, losses: tuple[Loss, Loss], weights: Sequence[Tensor], architecture: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        import torch

        if self.order == "second":
            return second_order(losses, weights, architecture, self.learning_rate)
        return torch.autograd.grad(losses[1](), architecture)


def second_order(
    losses: tuple[Loss, Loss], weights: Sequence[Tensor], architecture: Sequence[Tensor], rate: float
) -> list[Tensor]:
    """Return the architecture gradient of the validation loss (Eq. 7, 8).

    The gradient is taken after a weight step on the training loss.
    """
    import torch

    train_loss, val_loss = losses
    with moved(weights, torch.autograd.grad(train_loss(), weights), -rate):
        gradients = torch.autograd.grad(val_loss(), [*weights, *architecture])
    by_weights, direct = gradients[: len(weights)], gradients[len(weights) :]
    epsilon = EPSILON / max(float(torch.stack([one.square().sum() for one in by_weights]).sum().sqrt()), 1e-12)
    sides = []
    for step in (epsilon, -epsilon):
        with moved(weights, by_weights, step):
            sides.append(torch.autograd.grad(train_loss(), architecture))
    return [one - rate * (up - down) / (2 * epsilon) for one, up, down in zip(direct, *sides, strict=True)]


@contextmanager
def moved(weights: Sequence[Tensor], along: Sequence[Tensor], step: float) -> Iterator[None]:
    """Move weights along a direction within the block, and restore them to the bit afterwards."""
    import torch

    before = [one.detach().clone() for one in weights]
    with torch.no_grad():
        for one, direction in zip(weights, along, strict=True):
            one.add_(direction, alpha=step)
    try:
        yield
    finally:
        with torch.no_grad():
            for one, old in zip(weights, before, strict=True):
                one.copy_(old)


def halves(frames: LabelledFrames, rng: np.random.Generator) -> tuple[LabelledFrames, LabelledFrames]:
    """Split frames into two random halves."""
    order = rng.permutation(len(frames))
    return frames.part(order[: len(order) // 2]), frames.part(order[len(order) // 2 :])


def _loss(
    data: DataSplits, mixed: MixedNetwork, frames: LabelledFrames, rows: Rows, shares: Sequence[Tensor]
) -> Tensor:
    """Return the task's loss of the mixed network; 0 if no frame has a usable label."""
    from driftlab.platform.networks.predict import inputs_for

    output = mixed(inputs_for(mixed, frames.images[rows]), shares)
    loss = data.task.loss(output, frames.labels[rows])
    return output.sum() * 0 if loss is None else loss
