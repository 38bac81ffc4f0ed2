"""Wire format of a channel mask, which is sent before the update of a network's weights.

A channel mask lists the channels that the network keeps. All numbers are little-endian.
A message without this magic is an update without a channel mask.

    offset  bytes  field
    0       4      magic "DRFT"
    4       1      format version: 1
    5       2      n, the number of groups of channels
    7       4      length of the groups
    11      ...    n times: length of the name (2), name in UTF-8, length of the mask (4), one bit per channel
    ...     4      CRC-32 of everything before it
    ...     ...    the update (delta.py), with a separate checksum
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError
from driftlab.platform.core.wire import CHECKSUM, seal, unseal

Kept = Mapping[str, npt.NDArray[np.int64]]  # by group: channels, ascending
MAGIC, VERSION = b"DRFT", 1
HEADER, NAME, MARKS = struct.Struct("<4sBHI"), struct.Struct("<H"), struct.Struct("<I")


def encode(kept: Kept, update: bytes) -> bytes:
    """Prepend a channel mask to an update."""
    parts = []
    for name, channels in kept.items():
        mask = np.zeros(int(channels.max()) + 1, dtype=bool)
        mask[channels] = True
        packed, encoded_name = np.packbits(mask, bitorder="little").tobytes(), name.encode()
        parts.append(NAME.pack(len(encoded_name)) + encoded_name + MARKS.pack(len(packed)) + packed)
    body = b"".join(parts)
    return seal(HEADER.pack(MAGIC, VERSION, len(parts), len(body)) + body) + update


def split(message: bytes) -> tuple[dict[str, npt.NDArray[np.int64]] | None, bytes]:
    """Split a message into its channel mask (None without one) and its update; refuse a damaged mask."""
    if message[: len(MAGIC)] != MAGIC:
        return None, message
    if len(message) < HEADER.size:
        raise WireError(f"torn: {len(message)} bytes are less than the header of a channel mask")
    _, version, count, length = HEADER.unpack_from(message)
    end = HEADER.size + length + CHECKSUM.size
    body = unseal(message[:end])
    if version != VERSION:
        raise WireError(f"foreign: a channel mask of format {version}, known is {VERSION}")
    kept, rest = dict[str, npt.NDArray[np.int64]](), body[HEADER.size :]
    for _ in range(count):
        encoded_name, rest = _field(rest, NAME)
        packed, rest = _field(rest, MARKS)
        mask = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
        kept[encoded_name.decode(errors="replace")] = np.flatnonzero(mask)
    if rest:
        raise WireError(f"torn: a channel mask of {count} groups is followed by {len(rest)} bytes")
    return kept, message[end:]


def _field(data: bytes, length: struct.Struct) -> tuple[bytes, bytes]:
    """Split off a field that begins with its length."""
    if len(data) < length.size:
        raise WireError("torn: a channel mask ends before its last group")
    end = length.size + int(length.unpack_from(data)[0])
    if len(data) < end:
        raise WireError("torn: a channel mask ends within a group")
    return data[length.size : end], data[end:]
