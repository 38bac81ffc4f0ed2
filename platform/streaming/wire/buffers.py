"""Encoding of an update's buffers (as of batch norm): the section of a message after its weights.

offset  bytes  field
0       4      length of the rest
4       8      digest of the buffers' layout
12      4      b, the number of buffers that the section carries
16      4 b    their indices in the layout, ascending
...     ...    their values in sequence, complete and in full precision, little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from driftlab.errors import WireError
from driftlab.platform.networks.state import Array, Buffers

LENGTH = struct.Struct("<I")
HEAD = struct.Struct("<8sI")
PLACE = np.dtype("<u4")


def encode(buffers: Buffers, places: Sequence[int]) -> bytes:
    """Encode the buffers at these indices of the layout."""
    layout, chosen = buffers.layout, [buffers.arrays[place] for place in places]
    if not all(_is_finite(array) for array in chosen):
        raise WireError("torn: the buffers to send are not finite")
    head = HEAD.pack(bytes.fromhex(layout.digest), len(places)) + np.array(places, dtype=PLACE).tobytes()
    body = head + b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in chosen)
    return LENGTH.pack(len(body)) + body


def length_of(data: bytes, start: int) -> int:
    """Return the length of the section that starts at `start`, its length field included."""
    if len(data) < start + LENGTH.size:
        raise WireError(f"torn: {len(data)} bytes end before the buffers")
    return LENGTH.size + int(LENGTH.unpack_from(data, start)[0])


def decode(section: bytes, held: Buffers, *, every: bool) -> Buffers:
    """Apply a section to a receiver's buffers; every field is checked before it is used.

    With `every`, a section without one of the buffers is refused.
    """
    layout, body = held.layout, memoryview(section)[LENGTH.size :]
    if len(body) < HEAD.size:
        raise WireError(f"torn: {len(body)} bytes of buffers are less than a header")
    digest, count = HEAD.unpack_from(body)
    if digest.hex() != layout.digest:
        raise WireError(f"foreign: made for buffers of layout {digest.hex()}, this model has {layout.digest}")
    start = HEAD.size + count * PLACE.itemsize
    if (every and count != len(layout.names)) or len(body) < start:
        raise WireError(f"torn: {len(body)} bytes with {count} buffers, the model has {len(layout.names)}")
    places = np.frombuffer(body[HEAD.size : start], dtype=PLACE).tolist()
    if any(later <= earlier for earlier, later in zip([-1, *places], places, strict=False)):
        raise WireError("torn: the places of the buffers do not rise")
    if places and places[-1] >= len(layout.names):
        raise WireError(f"torn: a buffer in place {places[-1]}, the model has {len(layout.names)}")
    if len(body) != start + sum(layout.nbytes[place] for place in places):
        raise WireError(f"torn: {len(body)} bytes do not hold the {count} buffers that they name")
    arrays = list(held.arrays)
    for place in places:
        arrays[place] = _array(body[start : start + layout.nbytes[place]], held, place)
        start += layout.nbytes[place]
    return Buffers(layout, tuple(arrays))


def _array(data: memoryview, held: Buffers, place: int) -> Array:
    dtype, shape = np.dtype(held.layout.dtypes[place]), held.layout.shapes[place]
    array = np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    if not _is_finite(array):
        raise WireError(f"torn: buffer '{held.layout.names[place]}' would not be finite")
    return array


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())
