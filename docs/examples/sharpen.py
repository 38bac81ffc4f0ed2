"""Sharpen: all weights minimise the entropy of predictions; uncertain frames have larger weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sharpen:
    """Minimise the entropy of predictions with all weights."""

    def __init__(self, learning_rate: float = 1e-4, power: float = 1.0) -> None:
        self.learning_rate, self.power = learning_rate, power
        self.optimiser: torch.optim.Optimizer | None = None

    def adapt(self, model: nn.Module, frames: Tensor) -> Tensor:
        """Make one step on a batch, and return the outputs of before."""
        if self.optimiser is None:
            self.optimiser = torch.optim.Adam(model.parameters(), self.learning_rate)
        outputs: Tensor = model(frames)
        logs = outputs.log_softmax(dim=1)
        entropy = -(logs.exp() * logs).sum(dim=1)
        self.optimiser.zero_grad()
        (entropy.detach() ** self.power * entropy).mean().backward()
        self.optimiser.step()
        return outputs
