"""Helpers on modules: copies, state dicts, single parameters, batch-norm statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from driftlab.platform.core.records import Weights
from driftlab.platform.core.work import of_the_lab
from driftlab.platform.networks.vector import Layout

Network = TypeVar("Network", bound=nn.Module)


@dataclass
class NormRecord:
    """The batch norms that used batch statistics, and those that could not.

    One value per channel has no variance.
    """

    ran: dict[str, None] = field(default_factory=dict)  # in running order
    starved: dict[str, None] = field(default_factory=dict)
    rests: bool = False

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Use the stored statistics of batch norms within this context."""
        self.rests = True
        try:
            yield
        finally:
            self.rests = False


def copy_model(model: Network, memo: dict[int, Any] | None = None) -> Network:
    """Return a deep copy without empty tables of hooks.

    Copying these takes most of the time for small models.
    """
    memo = {} if memo is None else memo
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, dict) and not value:
                memo[id(value)] = type(value)()
    return copy.deepcopy(model, memo)


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norms by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def all_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return batch, layer, group and instance norms by name."""
    kinds = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def norm_state(norms: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of the norms' entries in the state dict: scales, shifts and statistics."""
    return [f"{name}.{own}" for name, norm in norms.items() for own in norm.state_dict()]


def copy_entries(model: nn.Module, names: Iterable[str]) -> Weights:
    """Return copies of entries of the state dict."""
    state = model.state_dict()
    return {name: np.array(state[name].cpu().numpy(), order="C") for name in names}


def restore_entries(model: nn.Module, weights: Weights) -> None:
    """Copy entries back into the model, bit for bit."""
    state = model.state_dict()
    for name, value in weights.items():
        state[name].copy_(torch.tensor(value))


@of_the_lab
def is_finite(model: nn.Module, names: Iterable[str]) -> bool:
    """Return whether all numbers of these entries are finite."""
    state = model.state_dict()
    finite = [state[name].isfinite().all() for name in names]
    return not finite or bool(torch.stack(finite).all())  # one value to read, also from a GPU


def coordinates(layout: Layout, names: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Mark the positions of these parameters in the vector."""
    mask = np.zeros(layout.size, dtype=bool)
    for name in names:
        mask[layout.spans[name]] = True
    return mask


@contextmanager
def train_only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Freeze all parameters except these within this context."""
    still = [value for name, value in model.named_parameters() if value.requires_grad and name not in names]
    for parameter in still:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in still:
            parameter.requires_grad_(True)


@contextmanager
def record_layers(model: nn.Module) -> Iterator[dict[str, None]]:
    """Record the modules with direct parameters that run within this context, in running order."""
    ran: dict[str, None] = {}

    def hook_of(name: str) -> Callable[..., None]:
        return lambda *_: ran.setdefault(name)

    first = {name: next(module.parameters(recurse=False), None) for name, module in model.named_modules()}
    owners = [name for name, parameter in first.items() if parameter is not None]
    hooks = [model.get_submodule(name).register_forward_pre_hook(hook_of(name)) for name in owners]
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def normalise_by_batch(model: nn.Module, *, keeps: bool, momentum: float | None = None) -> Iterator[NormRecord]:
    """Normalise by batch statistics within this context.

    `keeps` updates the stored statistics by momentum, or with None as a cumulative average. A batch norm with one value
    per channel uses its stored statistics. No other module changes its mode.
    """
    norms, passed = batch_norms(model), NormRecord()
    before = {name: (norm.training, norm.track_running_stats, norm.momentum) for name, norm in norms.items()}
    hooks = [norm.register_forward_pre_hook(_choosing(name, passed)) for name, norm in norms.items()]
    for norm in norms.values():
        norm.track_running_stats, norm.momentum = keeps and norm.track_running_stats, momentum
    try:
        yield passed
    finally:
        for hook in hooks:
            hook.remove()
        for name, norm in norms.items():
            norm.training, norm.track_running_stats, norm.momentum = before[name]


@contextmanager
def blend_statistics(model: nn.Module, share: float) -> Iterator[None]:
    """Blend a share of the batch statistics (unbiased variance) into the stored ones within this context."""
    norms = {name: norm for name, norm in batch_norms(model).items() if norm.running_mean is not None}
    stored = copy_entries(model, names := [f"{name}.running_{what}" for name in norms for what in ("mean", "var")])
    source = {name: torch.tensor(stored[name]) for name in names}

    def blend(name: str) -> Callable[..., None]:
        def hook(norm: _BatchNorm, given: tuple[Any, ...]) -> None:
            if given[0].numel() > given[0].shape[1]:
                seen = given[0].transpose(0, 1).flatten(1)
                for what, found in (("mean", seen.mean(dim=1)), ("var", seen.var(dim=1))):
                    kept = source[f"{name}.running_{what}"].to(found.device)
                    getattr(norm, f"running_{what}").copy_(torch.lerp(kept, found.to(kept.dtype), share))

        return hook

    hooks = [norm.register_forward_pre_hook(blend(name)) for name, norm in norms.items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()
        restore_entries(model, stored)


def _choosing(name: str, passed: NormRecord) -> Callable[..., None]:
    """Return a hook that sets the mode of a batch norm by its input before each call.

    The hook records the call.
    """

    def hook(norm: _BatchNorm, given: tuple[Any, ...]) -> None:
        norm.training = not passed.rests and given[0].numel() > given[0].shape[1]
        if not passed.rests:
            (passed.ran if norm.training else passed.starved)[name] = None

    return hook
