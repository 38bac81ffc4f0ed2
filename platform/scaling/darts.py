"""DARTS: operators weighted by a softmax and trained all at once, of which the heaviest one stays at each stage.

The weights of all operators learn on one half of the frames, the weights of the mixture (the architecture) on the
other, a step of each in turn. The first order takes the gradient of the architecture at the weights as they are; the
second one at the weights after their next step, by finite differences (Liu et al., ICLR 2019).

Differs from the paper: an operator stands for a whole stage; the architecture takes larger steps, as there are far
fewer; the step of the second order has no momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.searched import OfSearch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from driftlab.platform.networks.branched import Branched, MixedNetwork
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import Course, Data, Lessons, Rows

    Loss = Callable[[], Tensor]

BETAS, DECAY = (0.5, 0.999), 1e-3  # of the architecture's optimiser
REACH = 0.01  # of finite differences, over the length of the gradient


@dataclass(frozen=True)
class Darts(OfSearch):
    """Search operators by gradients, and run the network of the heaviest ones."""

    order: Annotated[
        Literal["first", "second"], Means("whether the architecture's gradient foresees the next step of the weights")
    ] = "first"
    architecture_rate: Annotated[float, Gt(0), Le(10), Means("step size of the architecture")] = 0.01

    def find_path(self, branched: Branched, data: Data, course: Course) -> Path:
        import torch

        from driftlab.platform.networks.branched import MixedNetwork
        from driftlab.platform.networks.training.training_loop import epochs

        rng = rng_for(data.seed, "scaling", "darts")
        learned, judged = halves(data.train, rng)
        mixed = MixedNetwork(branched)
        mixture = [torch.zeros(len(modules), requires_grad=True) for modules in branched.stages]
        walk = torch.optim.Adam(mixture, lr=self.architecture_rate, betas=BETAS, weight_decay=DECAY)

        def loss_on(lessons: Lessons, rows: Rows) -> Tensor:
            shares = [one.softmax(dim=0) for one in mixture]
            return _loss(data, mixed, lessons, rows, shares)

        def learn(rows: Rows) -> None:
            others = rng.integers(len(judged), size=len(rows))
            losses = (lambda: loss_on(learned, rows), lambda: loss_on(judged, others))
            for one, gradient in zip(mixture, self._gradients(losses, list(mixed.parameters()), mixture), strict=True):
                one.grad = gradient
            walk.step()
            torch.autograd.backward(loss_on(learned, rows), inputs=list(mixed.parameters()))

        for _ in epochs(mixed, replace(data, train=learned), course, rng, learn=learn):
            pass
        return tuple(int(one.argmax()) for one in mixture)

    def _gradients(
        self, losses: tuple[Loss, Loss], weights: Sequence[Tensor], mixture: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        import torch

        if self.order == "second":
            return second_order(losses, weights, mixture, self.learning_rate)
        return torch.autograd.grad(losses[1](), mixture)


def second_order(
    losses: tuple[Loss, Loss], weights: Sequence[Tensor], mixture: Sequence[Tensor], rate: float
) -> list[Tensor]:
    """Return the mixture's gradient of the second loss after a step of the weights along the first (Eq. 7 and 8)."""
    import torch

    learn, judge = losses
    with moved(weights, torch.autograd.grad(learn(), weights), -rate):
        found = torch.autograd.grad(judge(), [*weights, *mixture])
    ahead, direct = found[: len(weights)], found[len(weights) :]
    reach = REACH / max(float(torch.stack([one.square().sum() for one in ahead]).sum().sqrt()), 1e-12)
    sides = []
    for side in (reach, -reach):
        with moved(weights, ahead, side):
            sides.append(torch.autograd.grad(learn(), mixture))
    return [one - rate * (up - down) / (2 * reach) for one, up, down in zip(direct, *sides, strict=True)]


@contextmanager
def moved(weights: Sequence[Tensor], along: Sequence[Tensor], step: float) -> Iterator[None]:
    """Move weights along a direction for as long as the block runs; then they are what they were, to the bit."""
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


def halves(lessons: Lessons, rng: np.random.Generator) -> tuple[Lessons, Lessons]:
    """Split examples into two halves at random."""
    order = rng.permutation(len(lessons))
    return lessons.part(order[: len(order) // 2]), lessons.part(order[len(order) // 2 :])


def _loss(data: Data, mixed: MixedNetwork, lessons: Lessons, rows: Rows, shares: Sequence[Tensor]) -> Tensor:
    """Return the task's loss of a mixture; 0 where no frame can be learned from."""
    from driftlab.platform.networks.predict import to_input

    output = mixed(to_input(lessons.images[rows]), shares)
    loss = data.task.loss(output, lessons.labels[rows])
    return output.sum() * 0 if loss is None else loss
