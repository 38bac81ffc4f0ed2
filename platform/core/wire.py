"""The common parts of messages between nodes: a CRC-32 at the end, and decompression of bounded size."""

from __future__ import annotations

import struct
import zlib

from driftlab.errors import WireError

CHECKSUM = struct.Struct("<I")
ZLIB = zlib.MAX_WBITS  # zlib's name for a zlib header
GZIP = 31  # selects a gzip header; unlike the gzip module's it holds no time


def seal(body: bytes) -> bytes:
    """Append the CRC-32 of a message."""
    return body + CHECKSUM.pack(zlib.crc32(body))


def unseal(message: bytes) -> bytes:
    """Return a message without its CRC-32; refuse one that was damaged."""
    body, checksum = message[: -CHECKSUM.size], message[-CHECKSUM.size :]
    if len(checksum) < CHECKSUM.size or zlib.crc32(body) != CHECKSUM.unpack(checksum)[0]:
        raise WireError(f"torn: the checksum of a message of {len(message)} bytes does not match")
    return body


def inflate(data: bytes, limit_bytes: int, header: int = ZLIB) -> bytes:
    """Decompress one complete stream within the limit; refuse truncated streams and trailing bytes."""
    stream = zlib.decompressobj(header)
    try:
        inflated = stream.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise WireError(f"torn: {len(data)} bytes do not decompress ({error})") from error
    if len(inflated) > limit_bytes or not stream.eof or stream.unused_data:
        raise WireError(f"torn: {len(data)} bytes are not one stream of at most {limit_bytes} bytes")
    return inflated


def pack(body: bytes) -> bytes:
    """Compress a message and seal it."""
    return seal(zlib.compress(body, 9))


def unpack(message: bytes, limit_bytes: int) -> bytes:
    """Unseal and decompress a message of at most `limit_bytes`."""
    return inflate(unseal(message), limit_bytes)
