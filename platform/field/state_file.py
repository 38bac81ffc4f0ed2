"""Objects in a safetensors file: their arrays by number, and everything else as JSON.

Reading such a file runs no code from it, unlike a pickle. Its objects are of classes of driftlab's platform, layers of
torch and a few containers; they get their attributes without a call of their constructor. Members from files of users
are refused, as making one runs its file.
"""

from __future__ import annotations

import copyreg
import importlib
import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from driftlab.errors import DriftlabError, WireError, first_line
from driftlab.platform.core.limits import _Limited
from driftlab.platform.core.plugins import is_outside
from driftlab.platform.core.registry import Member

CLASSES = ("driftlab.platform.", "driftlab.datasets.")  # packages whose classes a file may name
LAYERS = "torch.nn.modules."
REFUSED = ("driftlab.platform.adaptation.plain", "driftlab.platform.core.plugins")  # they unpickle or import files
CONTAINERS: Mapping[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
SCALARS = (type(None), bool, int, float, str)
DAMAGED = (LookupError, ValueError, TypeError, AttributeError, ImportError, RuntimeError)  # of other contents
JSON = "state"  # name in the metadata of the file


def dump_objects(value: Any) -> bytes:
    """Return a value as the bytes of a safetensors file; raise WireError for other objects."""
    from safetensors.torch import save

    writer = _Writer()
    root = writer.encode(value)
    return save(writer.tensors, {JSON: json.dumps([root, writer.objects])})


def load_objects(data: bytes) -> Any:
    """Return the value in a file; raise WireError if it is not one, or names another class."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        root, objects = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][JSON])
        return _Reader(tensors, objects).decode(root)
    except DriftlabError:
        raise
    except (SafetensorError, *DAMAGED) as error:
        raise WireError(f"{len(data)} bytes are not stored objects of this version: {first_line(error)}") from error


class _Writer:
    """Numbers objects by identity, so that shared ones stay shared."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._storages: dict[Any, str] = {}
        self._alive: list[Any] = []  # an identity is unique only while its object exists

    def encode(self, value: Any) -> Any:
        """Return a scalar itself, and `[number]` for any other object."""
        if type(value) in SCALARS:
            return value
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.objects)
            self._alive.append(value)
            self.objects.append(None)
            self.objects[self._numbers[id(value)]] = self._describe(value)
        return [self._numbers[id(value)]]

    def _describe(self, value: Any) -> list[Any]:
        import torch

        kind = type(value)
        if kind in CONTAINERS.values():
            return [kind.__name__, [self.encode(one) for one in value]]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        if kind is dict:
            return ["dict", [[self.encode(key), self.encode(one)] for key, one in value.items()]]
        if kind is bytes:
            return [
                "bytes",
                self._store(torch.frombuffer(bytearray(value) or bytearray(1), dtype=torch.uint8)),
                len(value),
            ]
        if kind is np.ndarray:
            return ["array", self._store(torch.from_numpy(np.array(value, order="C"))), str(value.dtype)]
        if isinstance(value, np.generic):
            return ["number", str(value.dtype), self.encode(value.item())]
        if isinstance(value, torch.Tensor):
            return self._describe_tensor(value)
        if isinstance(value, np.random.Generator):
            return ["generator", self.encode(value.bit_generator.state)]
        if isinstance(value, np.dtype):
            return ["dtype", str(value)]
        if isinstance(value, Enum):
            return ["enum", _name_of(kind), value.name]
        if isinstance(value, type):
            return ["class", _name_of(value)]
        return self._describe_object(value)

    def _describe_tensor(self, value: Any) -> list[Any]:
        import torch

        storage = value.untyped_storage()
        key = (storage.data_ptr(), value.dtype, value.device)
        if key not in self._storages:  # tensors that share memory stay so
            flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage)
            self._storages[key] = self._store(flat.detach().cpu().clone())
            self._alive.append(storage)
        place = [value.storage_offset(), list(value.shape), list(value.stride())]
        flags = [isinstance(value, torch.nn.Parameter), value.requires_grad, str(value.device)]
        return ["tensor", self._storages[key], *place, *flags]

    def _describe_object(self, value: Any) -> list[Any]:
        reduced = value.__reduce_ex__(2)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if make is _Limited:
            return ["limited", [self.encode(one) for one in arguments]]
        if make is OrderedDict or make is deque:  # their reduction names the class instead of `__newobj__`
            make, arguments = copyreg.__newobj__, (make, *arguments)  # type: ignore[attr-defined]
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            raise WireError(f"an object of {type(value).__module__}.{type(value).__qualname__} cannot be stored")
        cls, *rest = arguments
        parts = [self.encode(rest), self.encode(state), self.encode([*(items or ())]), self.encode([*(pairs or ())])]
        return ["object", _name_of(cls), *parts]

    def _store(self, tensor: Any) -> str:
        name = str(len(self.tensors))
        self.tensors[name] = tensor
        return name


class _Reader:
    """Makes objects from their descriptions, each once."""

    def __init__(self, tensors: Mapping[str, Any], objects: list[Any]) -> None:
        self._tensors, self._objects = tensors, objects
        self._made: dict[int, Any] = {}
        self._storages: dict[str, Any] = {}  # of tensors that share memory

    def decode(self, value: Any) -> Any:
        """Return the value of a scalar or a reference."""
        if not isinstance(value, list):
            return value
        (number,) = value
        if number not in self._made:
            self._made[number] = self._make(number, *self._objects[number])
        return self._made[number]

    def _make(self, number: int, kind: str, *about: Any) -> Any:
        if kind in CONTAINERS:
            return self._make_container(number, CONTAINERS[kind], about[0])
        if kind == "dict":
            made = self._made[number] = {}
            made.update((self.decode(key), self.decode(one)) for key, one in about[0])
            return made
        if kind == "object":
            return self._make_object(number, *about)
        makers: dict[str, Any] = {
            "bytes": lambda name, size: self._tensors[name].numpy().tobytes()[:size],
            "array": lambda name, dtype: self._tensors[name].numpy().astype(dtype, copy=False),
            "number": lambda dtype, item: np.dtype(dtype).type(self.decode(item)),
            "tensor": self._make_tensor,
            "generator": self._make_generator,
            "range": range,
            "dtype": np.dtype,
            "enum": lambda name, member: _class_of(name)[member],
            "class": _class_of,
            "limited": lambda arguments: _Limited(*map(self.decode, arguments)),
        }
        return makers[kind](*about)

    def _make_container(self, number: int, kind: Any, values: list[Any]) -> Any:
        if kind is list:
            made = self._made[number] = []  # it may contain itself
            made.extend(map(self.decode, values))
            return made
        return kind(map(self.decode, values))

    def _make_tensor(
        self, name: str, start: int, size: list[int], stride: list[int], is_parameter: bool, learns: bool, device: str
    ) -> Any:
        import torch

        storage = self._storages.setdefault(name, self._tensors[name].to(device))
        tensor = torch.empty(0, dtype=storage.dtype, device=device).set_(storage.untyped_storage(), start, size, stride)
        return torch.nn.Parameter(tensor, learns) if is_parameter else tensor.requires_grad_(learns)

    def _make_generator(self, state: Any) -> Any:
        plain = self.decode(state)
        if plain["bit_generator"] not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
            raise WireError(f"'{plain['bit_generator']}' is not a generator of random numbers")
        bits = getattr(np.random, plain["bit_generator"])()
        bits.state = plain
        return np.random.Generator(bits)

    def _make_object(self, number: int, name: str, arguments: Any, state: Any, items: Any, pairs: Any) -> Any:
        cls = _class_of(name)
        made = self._made[number] = cls.__new__(cls, *self.decode(arguments))
        if cls in (OrderedDict, deque):
            cls.__init__(made, *self.decode(arguments))
        for item in self.decode(items):
            made.append(item)
        for key, value in self.decode(pairs):
            made[key] = value
        _set_state(made, self.decode(state))
        if isinstance(made, Member) and is_outside(made.name):
            raise WireError("a member of a stored state cannot be a file")
        return made


def _set_state(made: Any, state: Any) -> None:
    if state is None:
        return
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(made, name, value)  # of a frozen dataclass as well


def _name_of(cls: type) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _class_of(name) is not cls:
        raise WireError(f"the class {name} cannot be found by its name")
    return name


@cache
def _class_of(name: str) -> Any:
    """Return a class that a file may name."""
    module, _, path = name.partition(":")
    if name in ("collections:OrderedDict", "collections:deque"):
        return {"OrderedDict": OrderedDict, "deque": deque}[path]
    if not module.startswith((*CLASSES, LAYERS)) or module in REFUSED:
        raise WireError(f"a stored state cannot have objects of '{name}'")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise WireError(f"'{name}' is not a class")
    return found
