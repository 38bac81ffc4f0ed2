"""Count the operations, the parameters and the memory traffic of a network for one image."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from driftlab.platform.core.records import LayerCost, ModelCost

logger = logging.getLogger(__name__)

UNCOUNTED = (
    _NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Embedding,
)  # have parameters and by convention no multiply-accumulates


def count_cost(model: nn.Module, height: int, width: int) -> ModelCost:
    """Count one image: a multiply-accumulate counts one; only convolutions and linear layers have any.

    Bytes are those of leaf modules; operations between them (adding, resizing) are not counted. A copy runs once over a
    black image on the model's device: the meta device would save the arithmetic and cost a second of imports.
    """
    ghost = copy.deepcopy(model).eval()
    where = next((parameter.device for parameter in ghost.parameters()), torch.device("cpu"))
    layers: list[LayerCost] = []
    hooks = [
        module.register_forward_hook(
            lambda module, given, made, name=name: layers.append(_layer(name, module, given, made))
        )
        for name, module in ghost.named_modules()
        if next(module.children(), None) is None
    ]
    with torch.inference_mode():
        ghost(torch.zeros(1, 3, height, width, device=where))
    for hook in hooks:
        hook.remove()
    _warn_of_uncounted(ghost, {layer.name for layer in layers if layer.macs})
    return ModelCost(
        macs=sum(layer.macs for layer in layers),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=_stored_bytes(model),
        activation_bytes=sum(layer.output_bytes for layer in layers),
        layers=tuple(layers),
        kernel_bytes=sum(each.numel() * each.itemsize for each in model.parameters() if each.dim() > 1),
    )


def _layer(name: str, module: nn.Module, given: Any, made: Any) -> LayerCost:
    parameters = list(module.parameters())
    return LayerCost(
        name=name,
        kind=type(module).__name__,
        macs=_macs(module, given, made),
        parameters=sum(parameter.numel() for parameter in parameters),
        input_bytes=sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(given)),
        output_bytes=sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(made)),
        weight_bytes=sum(parameter.numel() * parameter.itemsize for parameter in parameters),
    )


def _macs(module: nn.Module, given: Any, made: Any) -> int:
    if isinstance(module, nn.Linear):
        return int(made.numel()) * module.in_features
    if isinstance(module, _ConvTransposeNd):
        return int(given[0].numel()) * module.out_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, _ConvNd):
        return int(made.numel()) * module.in_channels // module.groups * math.prod(module.kernel_size)
    return 0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Find the tensors in a module's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _warn_of_uncounted(model: nn.Module, counted: set[str]) -> None:
    """Warn of modules with parameters that counted no operation: attention, recurrent layers, custom arithmetic."""
    for name, module in model.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own and name not in counted and not isinstance(module, UNCOUNTED):
            logger.warning("%s %s has %d parameters and counts no MACs", type(module).__name__, name or "(root)", own)


def _stored_bytes(model: nn.Module) -> int:
    """Sum parameters and persistent buffers; shared ones count once."""
    stored = {id(value): value for value in model.state_dict(keep_vars=True).values()}
    return sum(value.numel() * value.itemsize for value in stored.values())
