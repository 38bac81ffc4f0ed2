"""Encodings of an update's mask: ascending indices below n, to bytes and back.

raw    one bit per parameter
gzip   the same bits, compressed by gzip at its highest level, as in the released code of AMS
gaps   distance to the next index in bytes, where 255 continues, compressed by zlib
rice   distance to the next index: its low b bits verbatim, the rest as a run of zeros and a one. Each block of 512
       indices has a separate b, because layers differ in how densely they change. Three streams follow one another:
       the values of b (one byte each), the runs of all indices, the low bits sorted by b.
runs   the unit of which all runs of indices are multiples (one byte), the number of runs and the length of the next
       part (four bytes each), the gap before each run and the length of each run, both as rice; for weights in blocks
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError
from driftlab.platform.core.wire import GZIP, inflate

MaskCodec = Literal["raw", "gzip", "gaps", "rice", "runs"]
Index = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
BLOCK = 512
MAX_LOW_BITS = 31
GZIP_LEVEL = 9
ESCAPE = 255
RUNS = struct.Struct("<BII")


class MaskEncoding(NamedTuple):
    """An encoding in both directions; `decode` receives n and k and must validate the bytes against them."""

    encode: Callable[[Index, int], bytes]
    decode: Callable[[bytes, int, int], Index]


def encode(index: Index, size: int, codec: MaskCodec) -> bytes:
    """Encode ascending indices below `size`."""
    return ENCODINGS[codec].encode(index, size) if len(index) else b""


def decode(data: bytes, size: int, count: int, codec: MaskCodec) -> Index:
    """Decode indices; refuse bytes that do not hold exactly `count` of them below `size`."""
    index = ENCODINGS[codec].decode(data, size, count) if count else _NO_INDEX
    if len(index) != count or (count and not 0 <= index[-1] < size) or (data and not count):
        raise WireError(f"torn: the {codec} mask does not hold {count} indices below {size}")
    return index


def _encode_raw(index: Index, size: int) -> bytes:
    mask = np.zeros(size, dtype=np.bool_)
    mask[index] = True
    return np.packbits(mask).tobytes()


def _decode_raw(data: bytes, size: int, count: int) -> Index:
    if len(data) != (size + 7) // 8:
        return _NO_INDEX
    return np.flatnonzero(np.unpackbits(np.frombuffer(data, dtype=np.uint8)))


def _encode_gzip(index: Index, size: int) -> bytes:
    squeeze = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP)
    return squeeze.compress(_encode_raw(index, size)) + squeeze.flush()


def _decode_gzip(data: bytes, size: int, count: int) -> Index:
    return _decode_raw(inflate(data, (size + 7) // 8, GZIP), size, count)


def _encode_gaps(index: Index, size: int) -> bytes:
    escapes, last = np.divmod(np.diff(index, prepend=-1) - 1, ESCAPE)
    ends = np.cumsum(escapes + 1) - 1
    symbols = np.full(ends[-1] + 1, ESCAPE, dtype=np.uint8)
    symbols[ends] = last
    return zlib.compress(symbols.tobytes(), 9)


def _decode_gaps(data: bytes, size: int, count: int) -> Index:
    symbols = np.frombuffer(inflate(data, count + size // ESCAPE + 1), dtype=np.uint8)
    if not len(symbols) or symbols[-1] == ESCAPE:
        return _NO_INDEX
    ends = np.flatnonzero(symbols != ESCAPE)
    gaps = (np.diff(ends, prepend=-1) - 1) * ESCAPE + symbols[ends]
    return np.asarray(np.cumsum(gaps + 1) - 1, dtype=np.int64)


def _encode_rice(index: Index, size: int) -> bytes:
    gaps = np.diff(index, prepend=-1) - 1
    low = _low_bits(gaps)
    width = np.repeat(low, BLOCK)[: len(gaps)]
    ends = np.cumsum((gaps >> width) + 1) - 1
    runs = np.zeros(ends[-1] + 1, dtype=np.uint8)
    runs[ends] = 1
    rests = [_to_bits(gaps[width == b], b) for b in _widths(low)]
    return low.tobytes() + np.packbits(runs).tobytes() + np.packbits(np.concatenate([_NO_BITS, *rests])).tobytes()


def _decode_rice(data: bytes, size: int, count: int) -> Index:
    blocks = -(-count // BLOCK)
    low = np.frombuffer(data[:blocks], dtype=np.uint8)
    width = np.repeat(low, BLOCK)[:count].astype(np.int64)
    rest_bytes = (int(width.sum()) + 7) // 8
    if len(low) < blocks or np.any(low > MAX_LOW_BITS) or len(data) < blocks + rest_bytes:
        return _NO_INDEX
    stream = np.frombuffer(data, dtype=np.uint8)
    ends: Index = np.flatnonzero(np.unpackbits(stream[blocks : len(data) - rest_bytes]))
    if len(ends) != count or ends[-1] // 8 != len(data) - rest_bytes - blocks - 1:
        return _NO_INDEX
    gaps = (np.diff(ends, prepend=-1) - 1) << width
    bits, read = np.unpackbits(stream[len(data) - rest_bytes :]), 0
    for b in _widths(low):
        chosen = width == b
        length = int(chosen.sum()) * b
        gaps[chosen] |= _from_bits(bits[read : read + length], b)
        read += length
    return np.cumsum(gaps + 1) - 1


def _encode_runs(index: Index, size: int) -> bytes:
    begins = np.flatnonzero(np.diff(index, prepend=-2) > 1)
    starts, stops = index[begins], index[np.append(begins[1:], len(index)) - 1] + 1
    inner = stops[stops < size]  # a run that ends at the last weight may end within a unit
    unit = math.gcd(*(int(edge) for edge in (*starts, *inner))) or size
    unit = max(divisor for divisor in range(1, min(unit, ESCAPE) + 1) if unit % divisor == 0)
    lengths = -(-stops // unit) - starts // unit
    before = starts // unit - (np.cumsum(lengths) - lengths)
    first = _encode_rice(before, size)
    return RUNS.pack(unit, len(starts), len(first)) + first + _encode_rice(np.cumsum(lengths) - 1, size)


def _decode_runs(data: bytes, size: int, count: int) -> Index:
    if len(data) < RUNS.size:
        return _NO_INDEX
    unit, runs, split = RUNS.unpack_from(data)
    if not (unit and 0 < runs <= count and RUNS.size + split <= len(data)):
        return _NO_INDEX
    before = _decode_rice(data[RUNS.size : RUNS.size + split], size, runs)
    ends = _decode_rice(data[RUNS.size + split :], size, runs)
    if len(before) != runs or len(ends) != runs or ends[-1] >= count:
        return _NO_INDEX
    units = np.arange(ends[-1] + 1) + np.repeat(before, np.diff(ends, prepend=-1))
    index = (units[:, None] * unit + np.arange(unit)).ravel()
    return np.asarray(index[index < size], dtype=np.int64)


def _low_bits(gaps: Index) -> Bits:
    """Return the number of low bits with the shortest code, for each block."""
    starts = np.arange(0, len(gaps), BLOCK)
    sizes = np.diff(starts, append=len(gaps))
    max_bits = min(MAX_LOW_BITS, int(gaps.max()).bit_length())
    lengths = [np.add.reduceat(gaps >> b, starts) + sizes * (b + 1) for b in range(max_bits + 1)]
    return np.asarray(np.argmin(lengths, axis=0), dtype=np.uint8)


def _widths(low: Bits) -> list[int]:
    return [int(b) for b in np.unique(low) if b]


def _to_bits(gaps: Index, width: int) -> Bits:
    """Return the low bits of each gap, lowest first."""
    return ((gaps[:, None] >> np.arange(width)) & 1).astype(np.uint8).ravel()


def _from_bits(bits: Bits, width: int) -> Index:
    return np.asarray(bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width)))


_NO_BITS = np.empty(0, dtype=np.uint8)
_NO_INDEX = np.empty(0, dtype=np.int64)
ENCODINGS: dict[MaskCodec, MaskEncoding] = {
    "raw": MaskEncoding(_encode_raw, _decode_raw),
    "gzip": MaskEncoding(_encode_gzip, _decode_gzip),
    "gaps": MaskEncoding(_encode_gaps, _decode_gaps),
    "rice": MaskEncoding(_encode_rice, _decode_rice),
    "runs": MaskEncoding(_encode_runs, _decode_runs),
}
