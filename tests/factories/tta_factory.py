"""A network small enough to calculate by hand, and batches for it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION

STREAM = Phase(on_stream=True)


class SineNet(nn.Module):
    """Four sine inputs, batch norm, ReLU, average and linear head; a frame's red channel names its input."""

    def __init__(self) -> None:
        super().__init__()
        n, c, h, w = np.ogrid[:4, :3, :2, :2]
        self.inputs = torch.from_numpy(np.sin(1 + 1.3 * n + 0.7 * c + 0.5 * h + 0.3 * w))
        self.norm = nn.BatchNorm2d(3).double()
        self.norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
        self.norm.running_var.copy_(torch.tensor([0.5, 1.0, 2.0]))
        self.head = nn.Linear(3, 3, bias=False).double()
        weight = [[3 * math.cos(i + 2 * j) for j in range(3)] for i in range(3)]
        self.head.weight.data.copy_(torch.tensor(weight, dtype=torch.float64))
        self.seen: list[torch.Tensor] = []
        self.eval()

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        which = torch.round(frames[:, 0, 0, 0] * 63.75 + 127.5).long()
        logits: torch.Tensor = self.head(self.norm(self.inputs[which]).relu().mean(dim=(2, 3)))
        self.seen.append(logits.detach().clone())
        return logits


def four(seed: int = 0) -> Batch:
    images = np.zeros((4, 2, 2, 3), dtype=np.uint8)
    images[:] = np.arange(4)[:, None, None, None]
    return Batch(images, None, np.random.default_rng(seed), CLASSIFICATION)


def outputs(model: SineNet) -> torch.Tensor:
    with torch.no_grad():
        return model(to_input(four().images))


def near(found, expected, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


def frames(count: int, seed: int = 0, task=CLASSIFICATION) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(rng.integers(0, 256, (count, 16, 24, 3), dtype=np.uint8), None, rng, task)


def state_of(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
