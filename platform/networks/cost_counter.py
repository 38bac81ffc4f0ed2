"""Count the operations, parameters and memory traffic of a network per frame."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.module_utils import copy_model

logger = logging.getLogger(__name__)

UNCOUNTED = (
    _NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Embedding,
)  # have parameters, but by convention no multiply-accumulates


def count_cost(model: nn.Module, height: int, width: int) -> ModelCost:
    """Return the cost of one frame in multiply-accumulates of convolutions and matrix products.

    Operators are counted as they run, so attention counts however it is implemented. Bytes are those of leaf modules
    and of other modules with multiplications; operations between modules (addition, resizing) are not counted. A copy
    with the same parameters runs once on a black frame on the model's device: the meta device would save the
    arithmetic, but cost 1 s of imports.
    """
    ghost = copy_model(model, {id(parameter): parameter for parameter in model.parameters()}).eval()
    where = next((parameter.device for parameter in ghost.parameters()), torch.device("cpu"))
    layers: list[LayerCost] = []
    with torch.no_grad(), _visible_attention(), _Operators(ghost, layers):
        ghost(torch.zeros(1, 3, height, width, device=where))
    _warn_of_uncounted(ghost, {layer.name for layer in layers if layer.macs})
    return ModelCost(
        macs=sum(layer.macs for layer in layers),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=stored_bytes(model),
        activation_bytes=sum(layer.output_bytes for layer in layers),
        layers=tuple(layers),
        kernel_bytes=sum(each.numel() * each.itemsize for each in model.parameters() if each.dim() > 1),
    )


@contextmanager
def _visible_attention() -> Iterator[None]:
    """Run attention as matrix products, instead of one operator that hides them from the count."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Operators(TorchDispatchMode):
    """Assign the multiply-accumulates of operators to the innermost running module."""

    def __init__(self, model: nn.Module, layers: list[LayerCost]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers, self._running = layers, [0]  # multiply-accumulates of each running module
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(partial(self._end, name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch.compile as it is: disabling it here would import it, which takes 1.5 s of processor time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func.overloadpacket):
            self._running[-1] += int(count(*args, **(kwargs or {}), out_val=made)) // 2
        return made

    def _begin(self, module: nn.Module, given: Any) -> None:
        self._running.append(0)

    def _end(self, name: str, module: nn.Module, given: Any, made: Any) -> None:
        macs = self._running.pop()
        if macs or next(module.children(), None) is None:
            self._layers.append(_layer(name, module, given, made, macs))


def _layer(name: str, module: nn.Module, given: Any, made: Any, macs: int) -> LayerCost:
    parameters = list(module.parameters())
    return LayerCost(
        name=name,
        kind=type(module).__name__,
        macs=macs,
        parameters=sum(parameter.numel() for parameter in parameters),
        input_bytes=sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(given)),
        output_bytes=sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(made)),
        weight_bytes=sum(parameter.numel() * parameter.itemsize for parameter in parameters),
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in the arguments or results of a module."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _warn_of_uncounted(model: nn.Module, counted: set[str]) -> None:
    """Log a warning for modules with parameters and no counted operation.

    Examples are recurrent layers and plain arithmetic.
    """
    for name, module in model.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own and not counted & _lineage(name) and not isinstance(module, UNCOUNTED):
            logger.warning("%s %s has %d parameters and counts no MACs", type(module).__name__, name or "(root)", own)


def _lineage(name: str) -> set[str]:
    """Return the names of a module and all its ancestors: attention uses the weights of its submodules."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def stored_bytes(model: nn.Module) -> int:
    """Return the bytes of parameters and persistent buffers; shared tensors count once."""
    stored = {id(value): value for value in model.state_dict(keep_vars=True).values()}
    return sum(value.numel() * value.itemsize for value in stored.values())
