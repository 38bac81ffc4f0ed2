"""The features of a network, which are the input of its head, from the same pass as its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from driftlab.errors import RunError
from driftlab.platform.networks.predict import evaluating, to_input


@dataclass(frozen=True, eq=False)
class FeaturePass:
    """The results of one forward pass."""

    outputs: torch.Tensor
    features: torch.Tensor  # [n, d] input of the head, averaged over space
    head: str  # name of the last linear or convolutional layer that ran
    layers: tuple[str, ...]  # leaf modules with weights, in running order


def weighted_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules that compute with weights, plain or reparametrised."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd) or next(module.parameters(recurse=False), None) is not None
    ]


def features(
    model: nn.Module, inputs: torch.Tensor, weighted: list[tuple[str, nn.Module]] | None = None
) -> FeaturePass:
    """Run the model in its current mode; gradients flow through outputs and features.

    Callers with many passes give its `weighted_modules`, whose search takes longer than a small layer.
    """
    taken: list[tuple[str, nn.Module, torch.Tensor]] = []  # by the last layer that could be the head
    layers: dict[str, None] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if next(module.children(), None) is None:
                layers[name] = None
            if isinstance(module, nn.Linear | _ConvNd):
                taken[:] = [(name, module, inputs[0])]

        return hook

    named = weighted_modules(model) if weighted is None else weighted
    hooks = [module.register_forward_pre_hook(note(name)) for name, module in named]
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not taken:
        raise RunError(f"This {type(model).__name__} has no linear or convolutional layer, therefore no head.")
    name, module, head_input = taken[0]
    return FeaturePass(outputs, _pooled(module, head_input), name, tuple(layers))


def mean_feature(model: nn.Module, images: npt.NDArray[np.uint8], device: str) -> tuple[float, ...]:
    """Return the mean feature of some images."""
    with evaluating(model), torch.inference_mode():
        found = features(model, to_input(images).to(device)).features
    return tuple(found.mean(dim=0).double().tolist())


def head_of(model: nn.Module, inputs: torch.Tensor) -> str:
    """Return the name of the head: the last linear or convolutional layer in running order."""
    with evaluating(model), torch.inference_mode():
        return features(model, inputs).head


def _pooled(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Average over space: convolutions have channels first, linear layers last."""
    if x.dim() <= 2:
        return x
    return x.flatten(1, -2).mean(dim=1) if isinstance(module, nn.Linear) else x.flatten(2).mean(dim=2)
