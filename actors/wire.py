"""Calls and replies as bytes: Ray sends one such value in a fraction of the time of Python objects."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from typing import Any

from ray import ObjectRef, cloudpickle

from driftlab.actors.node_host import Failure, Head

UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)  # pickle raises them for local classes and functions


def pack_call(address: Sequence[Any], args: Sequence[Any]) -> tuple[bytes, list[ObjectRef[Any]]]:
    """Return a call without the payloads among its arguments, and the references of these."""
    places = [index for index, arg in enumerate(args) if isinstance(arg, ObjectRef)]
    values = [None if isinstance(arg, ObjectRef) else arg for arg in args]
    return _pack((address, values, places)), [args[place] for place in places]


def unpack_call(call: bytes, payloads: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
    """Return address and arguments of a call."""
    address, args, places = pickle.loads(call)
    for place, payload in zip(places, payloads, strict=True):
        args[place] = payload
    return address, args


def pack_head(head: Head | Failure) -> bytes:
    return _pack(head)


def unpack_head(head: bytes) -> Head | Failure:
    unpacked: Head | Failure = pickle.loads(head)
    return unpacked


def _pack(value: Any) -> bytes:
    """Pickle a value; classes that the other process cannot import travel with it, which takes longer."""
    with contextlib.suppress(*UNPICKLABLE):
        packed = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in packed:  # the name of a script's module, which is another one in the other process
            return packed
    travelling: bytes = cloudpickle.dumps(value)
    return travelling
