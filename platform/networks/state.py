"""The state of a network: trainable parameters as one vector, persistent buffers as arrays.

Buffers are the batch-norm statistics (means, variances, batch counts) and all other untrained entries of the state
dict. The digest of a state also covers the state of the adaptation.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.errors import RequestError, RunError
from driftlab.platform.networks import vector
from driftlab.platform.networks.vector import Vector

Array = npt.NDArray[Any]
DTYPES = ("float16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class BufferLayout:
    """Names, shapes and types of buffers; two models with the same digest can exchange buffers."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @cached_property
    def nbytes(self) -> tuple[int, ...]:
        """Return the bytes of each buffer."""
        return tuple(
            math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    @cached_property
    def digest(self) -> str:
        """Return sixteen hex digits over names, shapes and types."""
        return hashlib.sha256(repr((self.names, self.shapes, self.dtypes)).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Buffers:
    """Copies of a model's persistent buffers, in the order of the layout."""

    layout: BufferLayout
    arrays: tuple[Array, ...]


NO_BUFFERS = Buffers(BufferLayout((), (), ()), ())


@dataclass(frozen=True, eq=False)
class State:
    """Parameters and buffers of one network at one moment."""

    vector: Vector
    buffers: Buffers


def read(model: nn.Module) -> State:
    """Copy the model's parameters and buffers."""
    return State(vector.read(model), read_buffers(model))


def write(model: nn.Module, state: State) -> None:
    """Copy parameters and buffers into the model."""
    write_buffers(model, state.buffers)  # first, as it refuses the buffers of another model
    vector.write(model, state.vector)


def read_buffers(model: nn.Module) -> Buffers:
    """Copy the model's persistent buffers; buffers with shared storage count once, under the first name."""
    tensors = _persistent(model)
    return Buffers(_layout_of(tensors), tuple(np.array(tensor.detach().cpu().numpy()) for tensor in tensors.values()))


def write_buffers(model: nn.Module, buffers: Buffers) -> None:
    """Copy buffers into the model; names, shapes and types must match."""
    tensors = _persistent(model)
    if _layout_of(tensors) != buffers.layout:
        raise RequestError(
            f"buffers of layout {buffers.layout.digest} do not belong to this {type(model).__name__}, "
            f"whose layout is {_layout_of(tensors).digest}; write buffers that were read from the same network"
        )
    with torch.no_grad():
        for tensor, array in zip(tensors.values(), buffers.arrays, strict=True):
            tensor.copy_(torch.tensor(array))  # a copy: an array from another process may be read-only


def changed_buffers(before: Buffers, after: Buffers) -> tuple[int, ...]:
    """Return the indices of the buffers of `after` that differ from those of `before` in any bit."""
    if before.layout != after.layout:
        return tuple(range(len(after.arrays)))
    pairs = zip(before.arrays, after.arrays, strict=True)
    return tuple(place for place, (old, new) in enumerate(pairs) if old.tobytes() != new.tobytes())


def digest_of(state: State, built: Buffers, memory: Any = None) -> str:
    """Return sixteen hex digits over weights, buffers and the state of an adaptation.

    Buffers are covered only if they differ from those of the network as built, `memory` only if it is not empty.
    """
    hashed = hashlib.sha256(state.vector.tobytes())
    changed = {
        state.buffers.layout.names[place]: state.buffers.arrays[place]
        for place in changed_buffers(built, state.buffers)
    }
    if changed:
        hashed.update(canonical_bytes(("buffers", changed)))
    if not (memory is None or (isinstance(memory, Mapping | Sequence) and not len(memory))):
        hashed.update(canonical_bytes(("adaptation", memory)))
    return hashed.hexdigest()[:16]


def canonical_bytes(value: Any, place: str = "state") -> bytes:
    """Encode a value as bytes that are equal in all processes.

    The bytes differ with type, name, shape or any bit.

    The order of a dictionary is ignored. Types without an encoding are refused.
    """
    kind, parts = _parts_of(value, place)
    return b"".join(struct.pack("<Q", len(part)) + part for part in (kind.encode(), *parts))


def _parts_of(value: Any, place: str) -> tuple[str, Sequence[bytes]]:
    """Return the type of a value and the encoding of its parts."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        values = [canonical_bytes(getattr(value, name), f"{place}.{name}") for name in names]
        cls = type(value)
        # `digest_name` keeps digests valid after a class is renamed. The module is ignored: that of a user's file
        # depends on the computer.
        name = getattr(cls, "digest_name", cls.__qualname__)
        return f"dataclass {name}", [part for pair in zip(map(str.encode, names), values, strict=True) for part in pair]
    if isinstance(value, Mapping):
        items = [(canonical_bytes(key, place), canonical_bytes(value[key], f"{place}[{key!r}]")) for key in value]
        return "mapping", [part for pair in sorted(items) for part in pair]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return kind, [canonical_bytes(each, f"{place}[{number}]") for number, each in enumerate(value)]
    return _parts_of_leaf(value, place)


def _parts_of_leaf(value: Any, place: str) -> tuple[str, Sequence[bytes]]:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return f"tensor {value.dtype} {tuple(value.shape)}", [plain.view(torch.uint8).numpy().tobytes()]
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return f"{kind} {value.dtype.descr} {value.shape}", [value.tobytes()]
    if value is None:
        return "none", []
    if isinstance(value, bool | int):
        return "bool" if isinstance(value, bool) else "int", [b"%d" % value]
    if isinstance(value, float):
        return "float", [struct.pack("<d", value)]
    if isinstance(value, str):
        return "str", [value.encode()]
    if isinstance(value, bytes):
        return "bytes", [value]
    raise RunError(
        f"{place} is a {type(value).__qualname__}, which no digest can cover. Keep a state of dataclasses, "
        f"dictionaries, lists, tuples, arrays, tensors, numbers, text, bytes and None."
    )


def _persistent(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers by name, one name per storage."""
    kept = model.state_dict(keep_vars=True).keys()
    by_storage: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in model.named_buffers():
        if name in kept:
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else id(tensor)
            by_storage.setdefault(key, (name, tensor))
    return dict(by_storage.values())


def _layout_of(tensors: Mapping[str, Tensor]) -> BufferLayout:
    dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    for name, dtype in zip(tensors, dtypes, strict=True):
        if dtype not in DTYPES:
            raise RequestError(f"buffer '{name}' is {dtype}, allowed are {', '.join(DTYPES)}; convert the network")
    return BufferLayout(tuple(tensors), tuple(tuple(tensor.shape) for tensor in tensors.values()), dtypes)
