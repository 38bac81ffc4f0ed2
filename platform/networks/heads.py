"""The head of a network, and the parameters below it. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def linear_head(model: nn.Module, *, per_place: bool = False) -> str:
    """Return the name of the last layer if it is linear; else an empty text.

    With `per_place` it may be a 1x1 convolution.
    """
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear | _ConvNd)]
    if not layers:
        return ""
    name, head = layers[-1]
    is_1x1 = isinstance(head, _ConvNd) and {*head.kernel_size, *head.stride, head.groups} == {1}
    return name if isinstance(head, nn.Linear) or (per_place and is_1x1) else ""


def entries_of(model: nn.Module, layer: str) -> list[str]:
    """Return the names of a layer's entries in the state dict."""
    return [f"{layer}.{own}" for own in model.get_submodule(layer).state_dict()] if layer else []


def names_below_head(model: nn.Module) -> list[str]:
    """Return the names of the feature extractor's parameters: all except those of a linear head."""
    from driftlab.platform.networks.vector import layout_of

    head = linear_head(model)
    return [name for name in layout_of(model).names if not head or not name.startswith(f"{head}.")]
