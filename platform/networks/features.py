"""The features of a network: the input of its head, from the same pass as its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from driftlab.errors import RunError
from driftlab.platform.networks.predict import evaluating

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class FeaturePass:
    """One pass through a network."""

    outputs: torch.Tensor
    features: torch.Tensor  # [n, d] the input of the head, averaged over space
    head: str  # name of the last linear or convolutional layer that ran
    layers: tuple[str, ...]  # leaf modules with weights, in running order


def features(model: nn.Module, inputs: torch.Tensor) -> FeaturePass:
    """Run the model in its current mode and return the head's input as well; gradients flow through both."""
    taken: list[tuple[str, nn.Module, torch.Tensor]] = []  # of the latest layer that could be the head
    layers: dict[str, None] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            if next(module.children(), None) is None:
                layers[name] = None
            if isinstance(module, nn.Linear | _ConvNd):
                taken[:] = [(name, module, given[0])]

        return hook

    weighted = [(name, module) for name, module in model.named_modules() if _has_weights(module)]
    hooks = [module.register_forward_pre_hook(note(name)) for name, module in weighted]
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not taken:
        raise RunError(f"This {type(model).__name__} has no linear or convolutional layer, therefore no head.")
    name, module, given = taken[0]
    return FeaturePass(outputs, _pooled(module, given), name, tuple(layers))


def head_of(model: nn.Module, inputs: torch.Tensor) -> str:
    """Name the head: the last linear or convolutional layer in running order."""
    with evaluating(model), torch.inference_mode():
        return features(model, inputs).head


def _has_weights(module: nn.Module) -> bool:
    """Tell whether a module computes with weights (own or reparametrised) rather than only contains layers."""
    return isinstance(module, nn.Linear | _ConvNd) or next(module.parameters(recurse=False), None) is not None


def _pooled(module: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Average over space: convolutions have channels first, linear layers last."""
    if given.dim() <= 2:
        return given
    return given.flatten(1, -2).mean(dim=1) if isinstance(module, nn.Linear) else given.flatten(2).mean(dim=2)


def linear_head(model: nn.Module, *, per_place: bool = False) -> str:
    """Name the last layer if it is linear, or with `per_place` a convolution of one pixel; empty if it is neither."""
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear | _ConvNd)]
    if not layers:
        return ""
    name, head = layers[-1]
    of_place = isinstance(head, _ConvNd) and {*head.kernel_size, *head.stride, head.groups} == {1}
    return name if isinstance(head, nn.Linear) or (per_place and of_place) else ""


def entries_of(model: nn.Module, layer: str) -> list[str]:
    """Name the entries of the state dict that belong to a layer."""
    return [f"{layer}.{own}" for own in model.get_submodule(layer).state_dict()] if layer else []


def names_below_head(model: nn.Module) -> list[str]:
    """Name the parameters that make the features: all but those of a linear head."""
    from driftlab.platform.networks.vector import layout_of

    head = linear_head(model)
    return [name for name in layout_of(model).names if not head or not name.startswith(f"{head}.")]
