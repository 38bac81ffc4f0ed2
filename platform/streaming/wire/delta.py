"""Wire format of a model update, versions 1 and 2.

All numbers are little-endian. A message is a header, the mask, the values, in version 2 a section of buffers, and the
CRC-32 of everything before it:

    offset  bytes  field
    0       4      magic "DLTA"
    4       1      format version: 1 without buffers, 2 with them
    5       1      value codec: 0 fp32, 1 fp16, 2 bf16, 3 int8, 4 int4
    6       1      mask codec: 0 none (every weight), 1 raw, 2 gzip, 3 gaps, 4 rice, 5 runs
    7       1      1 if the message is self-contained: it replaces all weights and needs no base
    8       8      layout digest
    16      4      version of the model after the update
    20      4      version of the model that it requires, its base (0 if self-contained)
    24      4      n, the length of the weight vector
    28      4      k, the number of weights that the message carries
    32      4      length of the mask
    36      4      length of the values
    40      ...    mask, values
    ...     ...    version 2: buffers (buffers.py), such as those of batch norm, in full precision
    end-4   4      CRC-32

Both ends do the same arithmetic: `encode` returns the vector as the receiver will have it, and the sender continues
with that vector, so that both copies are bit-identical while every message is applied. A damaged, foreign, replayed or
out-of-order message is refused; a self-contained message then restores agreement.

Version 2 carries the changed buffers; a self-contained message carries all of them. An update that changes no buffer is
written in version 1, which leaves the receiver's buffers unchanged.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError
from driftlab.platform.networks.state import NO_BUFFERS, Buffers, changed_buffers
from driftlab.platform.networks.vector import Layout, Vector
from driftlab.platform.streaming.wire import buffers as buffer_codec
from driftlab.platform.streaming.wire import masks
from driftlab.platform.streaming.wire import values as value_codecs
from driftlab.platform.streaming.wire.masks import MaskCodec
from driftlab.platform.streaming.wire.values import ValueCodec

Mask = npt.NDArray[np.bool_]
VALUES: tuple[ValueCodec, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
MASKS: tuple[MaskCodec | None, ...] = (None, "raw", "gzip", "gaps", "rice", "runs")
WITHOUT_BUFFERS, WITH_BUFFERS = 1, 2  # format versions
MAGIC = b"DLTA"
HEADER = struct.Struct("<4sBBBB8sIIIIII")
CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class Format:
    """The number format and the mask encoding of an update."""

    values: ValueCodec = "fp16"
    mask: MaskCodec = "rice"


@dataclass(frozen=True, eq=False)
class Change:
    """A step from one version of the weight vector and the buffers to the next."""

    before: Vector
    after: Vector
    changed: Mask | None  # weights to send; None: all
    version: int
    base: int | None  # None: the message is self-contained, for a receiver in any state
    buffers_before: Buffers = NO_BUFFERS
    buffers_after: Buffers = NO_BUFFERS  # without buffers the message has no section for them


@dataclass(frozen=True, eq=False)
class Encoded:
    """A message, and the sender's copy, which is equal to the receiver's after the message."""

    data: bytes
    vector: Vector
    values: int
    clamped: int  # number of values beyond the range of the codec
    residual: Vector  # rounding error of the codec, per weight
    buffers: Buffers


@dataclass(frozen=True, eq=False)
class Patched:
    """The receiver's vector and buffers after a message."""

    version: int
    vector: Vector
    buffers: Buffers


@dataclass(frozen=True, eq=False)
class _Message:
    """A decoded message that has passed all checks."""

    version: int
    self_contained: bool
    index: npt.NDArray[np.int64] | None
    values: Vector
    relative: bool
    buffers: Buffers  # of the receiver, after the message


def encode(change: Change, layout: Layout, form: Format, residual: Vector | None = None) -> Encoded:
    """Encode a change; `residual` adds the rounding errors of earlier messages (error feedback)."""
    if change.base is None and change.changed is not None:
        raise ValueError("a self-contained message carries every weight")
    index = None if change.changed is None or change.changed.all() else np.flatnonzero(change.changed)
    where = slice(None) if index is None else index
    relative = value_codecs.is_relative(form.values)
    target = change.after if residual is None else change.after + residual
    exact = target[where] - change.before[where] if relative and change.base is not None else target[where]
    if not np.isfinite(exact).all():
        raise WireError("torn: the weights to send are not finite")
    values, clamped = value_codecs.encode(exact, form.values)
    mask = b"" if index is None else masks.encode(index, layout.size, form.mask)
    section = _section(change)
    version = WITH_BUFFERS if section else WITHOUT_BUFFERS
    body = _header(change, layout, form, (version, len(exact), len(mask), len(values))) + mask + values + section
    received = value_codecs.decode(values, len(exact), form.values)
    buffers = change.buffers_after if section else change.buffers_before
    vector = _patch(change.before, _Message(change.version, change.base is None, index, received, relative, buffers))
    lost = np.zeros_like(vector) if residual is None else residual.copy()
    lost[where] = target[where] - vector[where]
    return Encoded(body + CHECKSUM.pack(zlib.crc32(body)), vector, len(exact), clamped, lost, buffers)


def _section(change: Change) -> bytes:
    """Encode the changed buffers, or all of a self-contained message; empty without buffers."""
    before = NO_BUFFERS if change.base is None else change.buffers_before
    places = changed_buffers(before, change.buffers_after)
    return buffer_codec.encode(change.buffers_after, places) if places else b""


def _header(change: Change, layout: Layout, form: Format, numbers: tuple[int, int, int, int]) -> bytes:
    every = change.changed is None or bool(change.changed.all())
    values, mask = VALUES.index(form.values), 0 if every else MASKS.index(form.mask)
    digest = bytes.fromhex(layout.digest)
    versions, (version_of_format, *lengths) = (change.version, change.base or 0), numbers
    self_contained = change.base is None
    return HEADER.pack(MAGIC, version_of_format, values, mask, self_contained, digest, *versions, layout.size, *lengths)


def is_self_contained(data: bytes) -> bool:
    """Return whether a message replaces all weights, by its header alone."""
    return len(data) >= HEADER.size and data[: len(MAGIC)] == MAGIC and bool(HEADER.unpack_from(data)[4])


def encode_state(vector: Vector, buffers: Buffers, layout: Layout, version: int) -> bytes:
    """Encode all weights and buffers in full precision, as a self-contained message."""
    change = Change(vector, vector, None, version, None, buffers_after=buffers)
    return encode(change, layout, Format("fp32")).data


def apply(data: bytes, vector: Vector, layout: Layout, *, base: int, buffers: Buffers = NO_BUFFERS) -> Patched:
    """Apply a message to a receiver at version `base`; refuse one that does not match."""
    message = _decode(data, layout, base, buffers)
    patched = _patch(vector, message)
    if not np.isfinite(patched).all():
        raise WireError("torn: the weights would not be finite")
    return Patched(message.version, patched, message.buffers)


def _decode(data: bytes, layout: Layout, current: int, buffers: Buffers) -> _Message:
    if len(data) < HEADER.size + CHECKSUM.size:
        raise WireError(f"torn: {len(data)} bytes are less than a header")
    magic, version_of_format, value_code, mask_code, self_contained, *rest = HEADER.unpack_from(data)
    digest, version, base, size, count, mask_bytes, value_bytes = rest
    if magic != MAGIC:
        raise WireError("foreign: not a model update")
    end = HEADER.size + mask_bytes + value_bytes  # of the weights
    section_bytes = buffer_codec.length_of(data, end) if version_of_format == WITH_BUFFERS else 0
    if len(data) != end + section_bytes + CHECKSUM.size:
        raise WireError(f"torn: {len(data)} bytes, the header promises another number")
    if zlib.crc32(memoryview(data)[: -CHECKSUM.size]) != CHECKSUM.unpack_from(data, len(data) - CHECKSUM.size)[0]:
        raise WireError("torn: the checksum does not match")
    supported = version_of_format in (WITHOUT_BUFFERS, WITH_BUFFERS)
    if not supported or value_code >= len(VALUES) or mask_code >= len(MASKS) or self_contained > 1:
        raise WireError(f"foreign: format {version_of_format}.{value_code}.{mask_code}, known are 1 and 2")
    if digest.hex() != layout.digest or size != layout.size:
        raise WireError(f"foreign: made for layout {digest.hex()}, this model is {layout.digest}")
    if version <= current:
        raise WireError(f"replayed: makes version {version}, this copy is at {current}")
    if not self_contained and base != current:
        raise WireError(f"out of order: builds on version {base}, this copy is at {current}")
    codec, mask_codec = VALUES[value_code], MASKS[mask_code]
    if value_bytes != value_codecs.bytes_of(codec, count) or (mask_codec is None and (count != size or mask_bytes)):
        raise WireError(f"torn: {mask_bytes} and {value_bytes} bytes do not hold {count} values of {size}")
    mask = data[HEADER.size : HEADER.size + mask_bytes]
    index = None if mask_codec is None else masks.decode(mask, size, count, mask_codec)
    values = value_codecs.decode(data[HEADER.size + mask_bytes : end], count, codec)
    if section_bytes:
        buffers = buffer_codec.decode(data[end : -CHECKSUM.size], buffers, every=bool(self_contained))
    return _Message(version, bool(self_contained), index, values, value_codecs.is_relative(codec), buffers)


def _patch(vector: Vector, message: _Message) -> Vector:
    """Apply a message to a copy of the vector, identically at the sender and the receiver."""
    where = slice(None) if message.index is None else message.index
    patched = np.zeros_like(vector) if message.self_contained else vector.copy()
    patched[where] = patched[where] + message.values if message.relative else message.values
    return patched
