"""A safe form of strided 1x1 convolutions with few channels.

On a CPU with AVX2 and without AVX-512, oneDNN 3.12 (in torch 2.13) writes out of bounds in the backward pass of a
strided 1x1 convolution with fewer than 8 input channels and channels-last input (uxlfoundation/oneDNN issue 6035). The
safe form selects the pixels of the stride first and convolves them with stride 1: the same sums on every CPU.

Set `NARROW` to 0 once the supported torch contains a oneDNN without this bug.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

NARROW = 8  # input channels per group below which the bug occurs
Network = TypeVar("Network", bound=nn.Module)


class Conv1x1Strided(nn.Conv2d):
    """A 1x1 convolution that selects the pixels of its stride before it convolves."""

    def take(self, images: Tensor) -> Tensor:
        """Return the pixels that the convolution reads."""
        if any(self._reversed_padding_repeated_twice):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            images = F.pad(images, self._reversed_padding_repeated_twice, mode)
        down, across = self.stride
        return images[..., ::down, ::across]

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(self.take(input), self.weight, self.bias, groups=self.groups)


def make_safe(model: Network) -> Network:
    """Convert the model's unsafe convolutions to the safe form, in place; names and weights stay."""
    for module in model.modules():
        if type(module) in (nn.Conv2d, Conv1x1Strided):
            module.__class__ = Conv1x1Strided if _is_unsafe(module) else nn.Conv2d
    return model


def _is_unsafe(conv: nn.Module) -> bool:
    assert isinstance(conv, nn.Conv2d)
    narrow = conv.in_channels // conv.groups < NARROW
    return narrow and conv.kernel_size == (1, 1) and max(conv.stride) > 1
