"""A small problem and small networks: a family is built in about a second."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.datasets.labelled import open_set
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.training.training_loop import DataSplits, convert_set

CLASSES = 4
SIZE = (16, 16)
KEEP = (0.75, 0.5, 0.25)


@lru_cache(maxsize=1)
def problem() -> DataSplits:
    counts = (320, 80, 120)
    return convert_set(open_set("signs/vc", counts=counts, size=SIZE[0], classes=CLASSES, difficulty=0.4), seed=3)


def some_images(count: int = 8) -> torch.Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(5))


class Residual(nn.Module):
    """A network with a shortcut, a depthwise layer, a convolution with bias and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner, self.outer = nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 1)
        self.deep, self.deep_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.hidden, self.head = nn.Linear(8 * 4, 10), nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = (x + self.outer(self.inner(x).relu())).relu()
        x = F.adaptive_avg_pool2d(self.deep_norm(self.deep(x)).relu(), 2)
        logits: torch.Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return logits


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    residual = Residual()
    for norm in (residual.stem_norm, residual.deep_norm):
        norm.weight.data.uniform_(0.5, 1.5)
        norm.running_mean.uniform_(-0.1, 0.1)
    return {"plain": build("tiny_classifier", CLASSES, seed=0).eval(), "residual": residual.eval()}


def numbers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
