"""The trainable parameters of a model as one flat vector.

The order is that of `named_parameters()`. Parameters with shared storage occur once; frozen parameters and buffers do
not occur.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.errors import RequestError

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the vector; models with equal digests can exchange vectors."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Return the slice of each parameter."""
        stops = np.cumsum(self.sizes).tolist()
        return {name: slice(stop - n, stop) for name, n, stop in zip(self.names, self.sizes, stops, strict=True)}

    @cached_property
    def digest(self) -> str:
        """Return sixteen hex digits over names, shapes and type."""
        text = repr((self.names, self.shapes, self.dtype))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Flat:
    """The vectors of a bound model, of which its parameters and gradients are views."""

    layout: Layout
    weights: Tensor
    gradients: Tensor


def layout_of(model: nn.Module) -> Layout:
    """Return the layout of the model's vector."""
    groups = _trainable(model)
    types = sorted({str(shared[0].dtype).removeprefix("torch.") for shared in groups.values()})
    if len(types) > 1:
        raise RequestError(f"a flat vector needs parameters of one type, the model has {' and '.join(types)}")
    shapes = tuple(tuple(shared[0].shape) for shared in groups.values())
    return Layout(tuple(groups), shapes, types[0] if types else "float32")


def read(model: nn.Module) -> Vector:
    """Copy the model's trainable parameters into one vector."""
    parts = [shared[0].detach().reshape(-1) for shared in _trainable(model).values()]
    if not parts:
        return np.empty(0, dtype=np.float32)
    return np.asarray(torch.cat(parts).cpu().numpy())


def write(model: nn.Module, vector: Vector) -> None:
    """Copy a vector into the model's trainable parameters."""
    groups = _trainable(model)
    sizes = [shared[0].numel() for shared in groups.values()]
    if vector.shape != (sum(sizes),):
        raise RequestError(f"the model has {sum(sizes)} trainable parameters, the vector is {vector.shape}")
    parts = torch.split(torch.tensor(vector), sizes)  # a copy: an array from another process may be read-only
    with torch.no_grad():
        for shared, part in zip(groups.values(), parts, strict=True):
            shared[0].copy_(part.view(shared[0].shape))


@contextmanager
def bind_vector(model: nn.Module) -> Iterator[Flat]:
    """Make the model's trainable parameters and their gradients views of two vectors within this context.

    Gradients accumulate until the caller zeroes them. Afterwards the parameters have no gradients and own their storage
    again, because pickling a view would pickle the full vector.
    """
    layout = layout_of(model)
    groups = _trainable(model)
    if not groups:
        raise RequestError("the model has no trainable parameters")
    with torch.no_grad():
        weights = torch.cat([shared[0].reshape(-1) for shared in groups.values()])
    gradients = torch.zeros_like(weights)
    for name, parameter in _members(groups):
        parameter.data = weights[layout.spans[name]].view(parameter.shape)
        parameter.grad = gradients[layout.spans[name]].view(parameter.shape)
    try:
        yield Flat(layout, weights, gradients)
    finally:
        own = {name: shared[0].detach().clone() for name, shared in groups.items()}
        for name, parameter in _members(groups):
            parameter.data = own[name]
            parameter.grad = None


def running_order(model: nn.Module, layout: Layout, sample: Tensor) -> list[str]:
    """Return the names of parameters in the order of first use of their modules; unused ones are last."""
    order: dict[str, None] = {}

    def note(prefix: str, module: nn.Module) -> Callable[..., None]:
        own = [f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)]
        return lambda *_: order.update(dict.fromkeys(own))

    handles = [module.register_forward_pre_hook(note(name, module)) for name, module in model.named_modules()]
    try:
        with torch.inference_mode():
            model(sample)
    finally:
        for handle in handles:
            handle.remove()
    return [name for name in (*order, *(n for n in layout.names if n not in order)) if name in layout.spans]


def _trainable(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group the trainable parameters by storage, under the first name."""
    groups: dict[str, list[nn.Parameter]] = {}
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        key = first_name.setdefault(parameter.data_ptr() or id(parameter), name)
        groups.setdefault(key, []).append(parameter)
    return groups


def _members(groups: dict[str, list[nn.Parameter]]) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, shared in groups.items() for parameter in shared)
