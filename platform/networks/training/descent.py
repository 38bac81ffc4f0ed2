"""Adam and momentum SGD on flat vectors that can update a selected part of the weights.

Moments are updated for all coordinates; only the update of the weights is restricted. Unrestricted, the arithmetic is
that of `torch.optim.Adam` and `torch.optim.SGD` operation by operation, so that the weights are equal to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from driftlab.errors import RequestError

Vector = npt.NDArray[np.float32]
Moments = tuple[Tensor, ...]
CHUNK_ELEMENTS = (
    1 << 16
)  # elements per pass through all operations of a step, so that they stay in the processor's cache
EpsilonMode = Literal["torch", "tf", "paper"]


class Rule(Protocol):
    """The update rule of an optimiser; `step` counts from 1."""

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


@dataclass(frozen=True)
class Adam:
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
class Momentum:
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


class Descent:
    """Gradient descent on selected coordinates of a weight vector; other coordinates keep every bit."""

    def __init__(self, rule: Rule, weights: Tensor, moments: tuple[Vector, ...], steps: int) -> None:
        if any(moment.shape != weights.shape for moment in moments):
            raise RequestError(f"the state is of another model: {len(moments[0])} weights, this one has {len(weights)}")
        self.weights = weights
        self.steps = steps
        self.rule = rule  # may change between steps; the number of moments may not
        self._moments = tuple(torch.tensor(moment, device=weights.device) for moment in moments)
        self._chosen: Tensor | None = None
        self._block = CHUNK_ELEMENTS if weights.device.type == "cpu" else max(1, len(weights))
        self._blocks = [torch.split(vector, self._block) for vector in (weights, *self._moments)]

    def restrict(self, mask: npt.NDArray[np.bool_]) -> None:
        """Restrict further steps to these coordinates."""
        self._chosen = None if mask.all() else torch.from_numpy(np.flatnonzero(mask)).to(self.weights.device)

    def step(self, gradient: Tensor) -> None:
        """Update all moments, and the weights of the selected coordinates."""
        self.steps += 1
        for part, weights, *moments in zip(torch.split(gradient, self._block), *self._blocks, strict=True):
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
