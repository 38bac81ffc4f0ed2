"""Adam and momentum SGD on flat vectors that can update a selected part of the weights.

Moments are updated for all coordinates; only the update of the weights is restricted. Unrestricted, the arithmetic is
that of `torch.optim.Adam` and `torch.optim.SGD` operation by operation, so that the weights are equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

Vector = npt.NDArray[np.float32]
Moments = tuple["Tensor", ...]
CHUNK_ELEMENTS = (
    1 << 16
)  # elements per pass through all operations of a step, so that they stay in the processor's cache
EpsilonMode = Literal["torch", "tf", "paper"]


class StepRule(Protocol):
    """An update rule for any tensor of weights; `step` counts from 1."""

    @property
    def moments(self) -> int: ...

    def move(self, weights: Tensor, gradient: Tensor, moments: Moments, step: int) -> None:
        """Update moments and weights by a gradient, in place; the gradient may change too."""
        ...


class Rule(Protocol):
    """An update rule in two parts, so that moments can follow where weights stay."""

    @property
    def moments(self) -> int: ...

    def observe(self, moments: Moments, gradient: Tensor) -> None:
        """Update the moments with a gradient, in place."""
        ...

    def descend(self, weights: Tensor, moments: Moments, step: int) -> None:
        """Update the weights in place."""
        ...

    def update(self, moments: Moments, step: int) -> Tensor:
        """Return the vector that `descend` subtracts."""
        ...


class _InTwoParts:
    """Makes an update rule in two parts one for any tensor of weights."""

    def move(self: Rule, weights: Tensor, gradient: Tensor, moments: Moments, step: int) -> None:
        whole, size = (weights, gradient, *moments), CHUNK_ELEMENTS
        chunked = (
            weights.numel() > size and weights.device.type == "cpu" and all(each.is_contiguous() for each in whole)
        )
        parts = [each.view(-1).split(size) if chunked else (each,) for each in whole]
        for chunk, seen, *held in zip(*parts, strict=True):
            self.observe(tuple(held), seen)
            self.descend(chunk, tuple(held), step)


@dataclass(frozen=True)
class Adam(_InTwoParts):
    """Adam with the epsilon of PyTorch, TensorFlow 1 or the AMS paper."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    epsilon_mode: EpsilonMode = "torch"

    moments = 2

    def observe(self, moments: Moments, gradient: Tensor) -> None:
        first, second = moments
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)

    def descend(self, weights: Tensor, moments: Moments, step: int) -> None:
        denominator, rate = self._denominator(moments[1], step)
        weights.addcdiv_(moments[0], denominator, value=-rate)

    def update(self, moments: Moments, step: int) -> Tensor:
        denominator, rate = self._denominator(moments[1], step)
        return moments[0].div(denominator).mul_(rate)

    def _denominator(self, second: Tensor, step: int) -> tuple[Tensor, float]:
        rate = self.learning_rate / (1 - self.beta1**step)
        correction = math.sqrt(1 - self.beta2**step)
        if self.epsilon_mode == "torch":
            return (second.sqrt() / correction).add_(self.epsilon), rate
        if self.epsilon_mode == "tf":
            return second.sqrt().add_(self.epsilon), rate * correction
        return (second + self.epsilon).sqrt_(), rate * correction


@dataclass(frozen=True)
class Momentum(_InTwoParts):
    """Gradient descent with momentum."""

    learning_rate: float
    momentum: float = 0.9

    moments = 1

    def observe(self, moments: Moments, gradient: Tensor) -> None:
        moments[0].mul_(self.momentum).add_(gradient)

    def descend(self, weights: Tensor, moments: Moments, step: int) -> None:
        weights.add_(moments[0], alpha=-self.learning_rate)

    def update(self, moments: Moments, step: int) -> Tensor:
        return moments[0] * self.learning_rate


@dataclass(frozen=True)
class Nesterov:
    """Gradient descent with Nesterov's momentum and weight decay."""

    learning_rate: float
    momentum: float
    weight_decay: float

    moments = 1

    def move(self, weights: Tensor, gradient: Tensor, moments: Moments, step: int) -> None:
        (speed,) = moments
        gradient.add_(weights, alpha=self.weight_decay)
        speed.mul_(self.momentum).add_(gradient)
        weights.add_(gradient.add_(speed, alpha=self.momentum), alpha=-self.learning_rate)


class Optimiser:
    """Descends on the parameters of a network by a rule, each by its own gradient.

    The weights are those of `torch.optim`, which first imports the whole compiler of PyTorch: a second per process.
    """

    def __init__(self, parameters: Iterable[Tensor], rule: StepRule) -> None:
        self.parameters = list(parameters)
        self.rule = rule
        self._states: dict[int, tuple[int, Moments]] = {}  # a parameter without a gradient does not count the step

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient; the gradient may change too."""
        import torch

        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                weights = parameter.detach()
                steps, moments = self._states.get(number) or (
                    0,
                    tuple(torch.zeros_like(weights) for _ in range(self.rule.moments)),
                )
                self.rule.move(weights, parameter.grad, moments, steps + 1)
                self._states[number] = (steps + 1, moments)


class Descent:
    """Gradient descent on selected coordinates of a weight vector; other coordinates keep every bit."""

    def __init__(self, rule: Rule, weights: Tensor, moments: tuple[Vector, ...], steps: int) -> None:
        import torch

        if any(moment.shape != weights.shape for moment in moments):
            raise RequestError(f"the state is of another model: {len(moments[0])} weights, this one has {len(weights)}")
        self.weights = weights
        self.steps = steps
        self.rule = rule  # may change between steps; the number of moments may not
        self._moments = tuple(torch.tensor(moment, device=weights.device) for moment in moments)
        self._chosen: Tensor | None = None
        self._block = CHUNK_ELEMENTS if weights.device.type == "cpu" else max(1, len(weights))
        self._blocks = [vector.split(self._block) for vector in (weights, *self._moments)]

    def restrict(self, mask: npt.NDArray[np.bool_]) -> None:
        """Restrict further steps to these coordinates."""
        import torch

        self._chosen = None if mask.all() else torch.from_numpy(np.flatnonzero(mask)).to(self.weights.device)

    def step(self, gradient: Tensor) -> None:
        """Update all moments, and the weights of the selected coordinates."""
        self.steps += 1
        for part, weights, *moments in zip(gradient.split(self._block), *self._blocks, strict=True):
            self.rule.observe(tuple(moments), part)
            if self._chosen is None:
                self.rule.descend(weights, tuple(moments), self.steps)
        if self._chosen is not None:
            moved = self.weights[self._chosen]
            self.rule.descend(moved, tuple(moment[self._chosen] for moment in self._moments), self.steps)
            self.weights[self._chosen] = moved

    def update(self) -> Vector:
        """Return the update of the last step for all coordinates."""
        return np.asarray(self.rule.update(self._moments, self.steps).cpu().numpy())

    def moments(self) -> tuple[Vector, ...]:
        """Copy the moments."""
        return tuple(np.array(moment.cpu().numpy()) for moment in self._moments)

    def is_finite(self) -> bool:
        """Return whether all weights and moments are finite."""
        return all(bool(vector.isfinite().all()) for vector in (self.weights, *self._moments))
