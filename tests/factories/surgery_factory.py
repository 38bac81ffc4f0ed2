"""Hand-made networks for channel surgery."""

from __future__ import annotations

import torch
from torch import nn

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A network of named layers with a given forward function."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        self.put_together = forward
        for name, layer in layers.items():
            self.add_module(name, layer)
        torch.manual_seed(1)
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.is_floating_point():
                tensor.data.uniform_(0.1, 1)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.put_together(self, x)


def conv(inputs: int, outputs: int, **options) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)
