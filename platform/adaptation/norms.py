"""Normalisation rules of batch norms: moving statistics, per instance, or of a memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    Moments = tuple[torch.Tensor, torch.Tensor]

Rule = Callable[[str, "_BatchNorm", "torch.Tensor"], "torch.Tensor | None"]


@contextmanager
def normalise_with(model: nn.Module, rule: Rule) -> Iterator[None]:
    """Make batch norms return a rule's result for their input; None leaves PyTorch's."""
    from driftlab.platform.networks.module_utils import batch_norms

    def forward_of(name: str, norm: _BatchNorm) -> Callable[[torch.Tensor], torch.Tensor]:
        plain = norm.forward

        def forward(given: torch.Tensor) -> torch.Tensor:
            return plain(given) if (found := rule(name, norm, given)) is None else found

        return forward

    norms = batch_norms(model)
    before = {name: vars(norm).get("forward") for name, norm in norms.items()}
    for name, norm in norms.items():
        vars(norm)["forward"] = forward_of(name, norm)  # a hook would run after PyTorch's pass, which nothing uses
    try:
        yield
    finally:
        for name, norm in norms.items():
            vars(norm)["forward"] = before[name]
            if before[name] is None:
                del vars(norm)["forward"]


@dataclass
class FollowingNorm:
    """RoTTA's robust batch norm: normalises by stored statistics that move towards the batch's."""

    share: float
    starved: dict[str, None] = field(default_factory=dict)

    def __call__(self, name: str, norm: _BatchNorm, given: torch.Tensor) -> torch.Tensor | None:
        if norm.running_mean is None or norm.running_var is None:
            return None
        if given.numel() == given.shape[1]:
            self.starved[name] = None
            return None
        seen = _by_channel(given)
        own_mean, own_variance = _moments(seen, correction=0)
        mean = (1 - self.share) * norm.running_mean + self.share * own_mean
        variance = (1 - self.share) * norm.running_var + self.share * own_variance
        norm.running_mean.copy_(mean.detach())
        norm.running_var.copy_(variance.detach())
        return _normalised(norm, given, (_lift(mean, given), _lift(variance, given)))


@dataclass
class InstanceNorm:
    """NOTE's instance-aware batch norm: corrects statistics outside `width` standard errors.

    With a `momentum` the batch's statistics count, and the stored ones move towards them.
    """

    width: float
    momentum: float | None = None

    def __call__(self, name: str, norm: _BatchNorm, given: torch.Tensor) -> torch.Tensor | None:
        if norm.running_mean is None or norm.running_var is None or given.numel() == given.shape[1]:
            return None
        mean, variance = norm.running_mean, norm.running_var
        if self.momentum is not None:
            mean, variance = _moments(_by_channel(given))
            norm.running_mean.lerp_(mean.detach(), self.momentum)
            norm.running_var.lerp_(variance.detach(), self.momentum)
        mean, variance = _lift(mean, given), _lift(variance, given)
        if given.dim() > 2 and given[0, 0].numel() > 1:
            mean, variance = self._corrected(norm, given, (mean, variance))
        return _normalised(norm, given, (mean, variance))

    def _corrected(self, norm: _BatchNorm, given: torch.Tensor, usual: Moments) -> Moments:
        places, alone = given[0, 0].numel(), (*given.shape[:2], *(1,) * (given.dim() - 2))
        mean, variance = usual
        own_mean, own_variance = (one.view(alone) for one in _moments(given.flatten(2)))
        widest = (variance + norm.eps) * self.width
        mean = mean + _shrunk(own_mean - mean, self.width * ((variance + norm.eps) / places).sqrt())
        change = _shrunk(own_variance - variance, widest * math.sqrt(2 / (places - 1)))
        return mean, (variance + change).relu()


@dataclass
class MemoryNorm:
    """SNAP's batch norm: a memory's statistics, corrected outside `width` standard errors of the batch."""

    width: float
    stored: Mapping[str, torch.Tensor]  # by batch norm: mean and variance, [2, channels]
    frames: int  # in the memory

    def __call__(self, name: str, norm: _BatchNorm, given: torch.Tensor) -> torch.Tensor | None:
        if name not in self.stored or given.numel() == given.shape[1]:
            return None
        mean, variance = self.stored[name].to(given)
        count = self.frames * given[0, 0].numel()
        mean, variance = mix_statistics((mean, variance), _moments(_by_channel(given)), count, self.width)
        return _normalised(norm, given, (_lift(mean, given), _lift(variance, given)))


@contextmanager
def record_statistics(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Record the mean and variance of each batch norm's input, [2, channels], in the last pass."""
    import torch

    from driftlab.platform.networks.module_utils import batch_norms

    found: dict[str, torch.Tensor] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given[0].numel() > given[0].shape[1]:
                found[name] = torch.stack(_moments(_by_channel(given[0].detach())))

        return hook

    hooks = [norm.register_forward_pre_hook(hook_of(name)) for name, norm in batch_norms(model).items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def mix_statistics(stored: Moments, seen: Moments, count: int, width: float) -> Moments:
    """Move the statistics of `count` values towards others by the excess over `width` standard errors."""
    mean, variance = stored
    away = (variance / count).sqrt() * width
    wide = variance * math.sqrt(2 / max(count - 1, 1)) * width
    return mean + _shrunk(seen[0] - mean, away), (variance + _shrunk(seen[1] - variance, wide)).relu()


def _by_channel(given: torch.Tensor) -> torch.Tensor:
    return given.transpose(0, 1).flatten(1)


def _moments(values: torch.Tensor, *, correction: int = 1) -> Moments:
    """Return mean and variance of the last dimension, in two passes, which are faster than `var`."""
    import torch

    mean = values.mean(dim=-1, keepdim=True)
    away = values - mean
    squares = away.square() if torch.is_grad_enabled() else away.square_()
    variance = squares.sum(dim=-1) / (values.shape[-1] - correction)
    return mean.squeeze(-1), variance


def _lift(values: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Shape one value per channel so that it meets the channels of an input."""
    return values.view(1, -1, *(1,) * (given.dim() - 2))


def _shrunk(values: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """Move values towards 0 by at most a width."""
    return values.sign() * (values.abs() - width).relu()


def _normalised(norm: _BatchNorm, given: torch.Tensor, moments: Moments) -> torch.Tensor:
    """Return the batch norm of an input by other moments; without gradients in one new array."""
    import torch

    mean, variance = moments
    scale, normal = (variance + norm.eps).rsqrt(), given - mean
    if not torch.is_grad_enabled():
        normal.mul_(scale)
        return normal if norm.weight is None else normal.mul_(_lift(norm.weight, given)).add_(_lift(norm.bias, given))
    normal = normal * scale
    return normal if norm.weight is None else (normal * _lift(norm.weight, given)).add_(_lift(norm.bias, given))
