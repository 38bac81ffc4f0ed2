"""A device that counts transfers: tensors of torch's `meta` device that hold values on the CPU.

An operator on tensors of both devices fails, as on a GPU. Whatever the CPU reads, and whatever is copied to the device,
is counted in numbers per transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE, CPU = "meta", torch.device("cpu")
IS_META, SET_DATA = Tensor.is_meta.__get__, Tensor.data.__set__
READ_STORAGE = {Tensor.data_ptr, Tensor.untyped_storage}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim"}  # the sizes depend on values
TAKES_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}  # GPUs copy them


@dataclass
class Transfers:
    """The sizes of all tensors that were moved."""

    read: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)


class Held(Tensor):
    """A tensor of the device; its `values` are on the CPU."""

    values: Tensor
    transfers = Transfers()  # of the device in use

    @staticmethod
    def __new__(cls, values: Tensor) -> Held:
        form = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        held = Tensor._make_wrapper_subclass(cls, values.size(), **form, device=DEVICE)
        held.values = values
        return held

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == IS_META:  # torch does not load weights into tensors without values
            return False
        if func in READ_STORAGE:
            return func(args[0].values)
        if func is Tensor.tolist:
            return args[0].detach().cpu().tolist()
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        if func == SET_DATA:
            args[0].values = args[1].values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Makes tensors on the device, and copies others to it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch.compile as it is: to disable it here would import it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Numbers(TorchFunctionMode):
    """Makes tensors of numbers on the CPU, then copies them: on the device torch would drop the values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and (device := named.pop("device", None)) is not None:
            return func(*args, **named).to(device)
        return func(*args, **(kwargs or {}))


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operator on the CPU; its result is on the requested device, or on that of the inputs."""
    tensors, devices = list[Tensor](), list[torch.device]()
    values = _values_of((args, kwargs), tensors, devices)
    name, target = func.overloadpacket.__name__, devices[0] if devices else None
    held = [one for one in tensors if isinstance(one, Held)]
    there = bool(held) if target is None else target.type == DEVICE
    if held and (name in WAITS or not there or _reads(name, args)):
        Held.transfers.read.append(held[0].numel())
    elif there and (others := [one for one in tensors if not isinstance(one, Held) and one.dim()]):
        if target is None and name not in {"copy_", *TAKES_INDICES}:
            raise RuntimeError(f"{func} was given tensors of two devices; of the CPU: {[*map(_shape, others)]}")
        Held.transfers.copied += [one.numel() for one in others]
    made = func(*values[0], **values[1])
    if target is not None and any(made is _values(one) for one in tensors):
        made = made.clone()  # it was on the CPU already
    known = {} if target is not None else {id(_values(one)): one for one in tensors}
    return _results(made, known, there=there)


def _reads(name: str, args: Any) -> bool:
    """Return whether an operator with tensors of the device reads some on the CPU."""
    if name == "copy_":
        return not isinstance(args[0], Held)
    return name in TAKES_INDICES and any(one is not None and one.dtype == torch.bool for one in args[1])


def _values_of(given: Any, tensors: list[Tensor], devices: list[torch.device]) -> Any:
    """Return nested arguments with their values on the CPU; list their tensors and devices in order.

    Torch's own functions for nested arguments take three times as long.
    """
    if isinstance(given, Tensor):
        tensors.append(given)
        return given.values if isinstance(given, Held) else given
    if isinstance(given, tuple | list):
        return type(given)([_values_of(one, tensors, devices) for one in given])
    if isinstance(given, dict):
        return {key: _values_of(one, tensors, devices) for key, one in given.items()}
    if isinstance(given, torch.device):
        devices.append(given)
        return CPU
    return given


def _results(made: Any, known: dict[int, Tensor], *, there: bool) -> Any:
    """Return nested results; tensors are those that were changed in place, or on the device."""
    if isinstance(made, Tensor):
        return known[id(made)] if id(made) in known else Held(made) if there else made
    if isinstance(made, tuple | list):
        return type(made)([_results(one, known, there=there) for one in made])
    return made


def _values(one: Tensor) -> Tensor:
    return one.values if isinstance(one, Held) else one


def _shape(one: Tensor) -> tuple[int, ...]:
    return tuple(one.shape)


@contextmanager
def counting_device() -> Iterator[Transfers]:
    """Give `meta` tensors values within this context, and count transfers."""
    Held.transfers = Transfers()
    # Inference mode supports no classes of tensors.
    with mock.patch.object(torch, "inference_mode", torch.no_grad), Numbers(), Factories():
        yield Held.transfers
