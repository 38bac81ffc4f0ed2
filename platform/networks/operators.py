"""Compression operators of AdaScale (arXiv 2412.00724, Section III).

An operator is a cheaper replacement of a residual part.

Each maps C_in to C_out channels at a stride of 1 or 2. Operators have no biases; the batch norm and activation behind
an operator belong to its block. If an odd number of channels is split, the first part has one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

BETA = 0.25  # channels of a narrow layer over those of its input
GROUPS = 4  # of the shuffle operator, if they divide its channels
EXPANSION = 2  # channels inside an inverted residual over those of its input


def _conv(inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1) -> nn.Conv2d:
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (size[0] // 2, size[1] // 2)
    return nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False)


def _norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU()]


def narrow_width(inputs: int) -> int:
    """Return the number of channels of a narrow layer."""
    return max(1, int(BETA * inputs))


def shuffle_groups(inputs: int, outputs: int) -> tuple[int, int]:
    """Return groups and inner channels of the shuffle operator: the largest common divisor up to `GROUPS`."""
    middle = max(1, outputs // 4)
    return math.gcd(math.gcd(GROUPS, inputs), math.gcd(middle, outputs)), middle


class _Parallel(nn.Module):
    """Two layers on the same input, with concatenated outputs."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x), self.second(x)], dim=1)


class Ghost(nn.Module):
    """Ghost module (GhostNet): a 1x1 convolution makes half of the channels.

    A depthwise convolution of its output makes the other half.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = math.ceil(outputs / 2)
        self.outputs = outputs
        self.primary = nn.Sequential(_conv(inputs, half, 1, stride), *_norm_relu(half))
        self.cheap = _conv(half, half, 3, groups=half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        primary = self.primary(x)
        return torch.cat([primary, self.cheap(primary)], dim=1)[:, : self.outputs]


class _Gate(nn.Module):
    """Squeeze-and-excitation of MobileNetV3: hard sigmoid, no biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = narrow_width(channels)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.narrow, self.wide = _conv(channels, hidden, 1), _conv(hidden, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.wide(self.narrow(self.squeeze(x)).relu())
        return x * nn.functional.hardsigmoid(gate)


class Shared(nn.Module):
    """A bottleneck that applies one 3x3 convolution twice, with separate batch norms."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        middle = narrow_width(inputs)
        self.narrow = nn.Sequential(_conv(inputs, middle, 1, stride), *_norm_relu(middle))
        self.twice = _conv(middle, middle, 3)
        self.norms = nn.ModuleList(nn.Sequential(*_norm_relu(middle)) for _ in range(2))
        self.wide = _conv(middle, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.narrow(x)
        for norm in self.norms:
            x = norm(self.twice(x))
        output: torch.Tensor = self.wide(x)
        return output


class LowRank(nn.Module):
    """A 3x3 convolution of low rank: a 1x3 and a 3x1 convolution without activation between them."""

    def __init__(self, inputs: int, outputs: int, stride: int, rank: int | None = None) -> None:
        super().__init__()
        middle = narrow_width(inputs) if rank is None else rank
        self.across, self.down = _conv(inputs, middle, (1, 3)), _conv(middle, outputs, (3, 1))
        self.across.stride, self.down.stride = (1, stride), (stride, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(self.across(x))
        return output


def inherit(pair: LowRank, weight: torch.Tensor) -> None:
    """Set a low-rank pair to the best approximation of 3x3 weights, by truncated SVD."""
    across, down = pair.across.weight, pair.down.weight
    outputs, inputs, height, width = weight.shape
    matrix = weight.detach().permute(1, 3, 2, 0).reshape(inputs * width, height * outputs)
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    rank = across.shape[0]
    root = values[:rank].sqrt()
    with torch.no_grad():
        across.copy_((left[:, :rank] * root).T.reshape(rank, inputs, 1, width))
        down.copy_((right[:rank] * root[:, None]).reshape(rank, height, outputs).permute(2, 0, 1)[..., None])


class Dense(nn.Module):
    """Dense connections (DenseNet): each layer and the output read all features before them.

    A stride averages the input first.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        grown = narrow_width(inputs)
        self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.layers = nn.ModuleList(
            nn.Sequential(_conv(inputs + before, grown, 3), *_norm_relu(grown)) for before in (0, grown)
        )
        self.join = _conv(inputs + 2 * grown, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        output: torch.Tensor = self.join(x)
        return output


class HalfResolution(nn.Module):
    """A 3x3 convolution at half the resolution, whose output is repeated to the full size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.pool, self.conv = nn.AvgPool2d(2, ceil_mode=True), _conv(inputs, outputs, 3, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = [-(-edge // self.stride) for edge in x.shape[-2:]]
        return nn.functional.interpolate(self.conv(self.pool(x)), size=size, mode="nearest")


def _fire(inputs: int, outputs: int, stride: int) -> nn.Module:
    middle, half = narrow_width(inputs), math.ceil(outputs / 2)
    expand = _conv(middle, half, 1, stride), _conv(middle, outputs - half, 3, stride)
    return nn.Sequential(_conv(inputs, middle, 1), *_norm_relu(middle), _Parallel(*expand))


def _depthwise(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(_conv(inputs, inputs, 3, stride, inputs), *_norm_relu(inputs), _conv(inputs, outputs, 1))


def _bottleneck(inputs: int, outputs: int, stride: int) -> nn.Module:
    middle = narrow_width(inputs)
    inner = [_conv(inputs, middle, 1), *_norm_relu(middle), _conv(middle, middle, 3, stride), *_norm_relu(middle)]
    return nn.Sequential(*inner, _conv(middle, outputs, 1))


def _asymmetric(inputs: int, outputs: int, stride: int) -> nn.Module:
    half = math.ceil(outputs / 2)
    return _Parallel(_conv(inputs, half, (1, 3), stride), _conv(inputs, outputs - half, (3, 1), stride))


def _shuffled(inputs: int, outputs: int, stride: int) -> nn.Module:
    groups, middle = shuffle_groups(inputs, outputs)
    grouped = [_conv(inputs, middle, 1, groups=groups), *_norm_relu(middle), nn.ChannelShuffle(groups)]
    deep = [_conv(middle, middle, 3, stride, middle), nn.BatchNorm2d(middle)]
    return nn.Sequential(*grouped, *deep, _conv(middle, outputs, 1, groups=groups))


def _inverted(inputs: int, outputs: int, stride: int) -> nn.Module:
    middle = EXPANSION * inputs
    expand = [_conv(inputs, middle, 1), *_norm_relu(middle)]
    deep = [_conv(middle, middle, 3, stride, middle), *_norm_relu(middle), _Gate(middle)]
    return nn.Sequential(*expand, *deep, _conv(middle, outputs, 1))


def _skip(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 and inputs == outputs else _conv(inputs, outputs, 1, stride)


OPERATORS: Mapping[str, Callable[[int, int, int], nn.Module]] = {
    "svd": LowRank,
    "fire": _fire,
    "dwsep": _depthwise,
    "bneck": _bottleneck,
    "share": Shared,
    "asym": _asymmetric,
    "ghost": Ghost,
    "shuffle": _shuffled,
    "mbconv": _inverted,
    "identity": _skip,
    "dense": Dense,
    "resolution": HalfResolution,
}


class OperatorBlock(nn.Module):
    """A residual block whose residual part is an operator.

    It keeps the shortcut, batch norm and activation of the block.
    """

    def __init__(self, operator: nn.Module, outputs: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.operator, self.norm, self.shortcut = operator, nn.BatchNorm2d(outputs), shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.norm(self.operator(x))
        return (inner if self.shortcut is None else inner + self.shortcut(x)).relu()
