"""Encodings of the values of an update.

fp32, fp16, bf16   the new weights
int8, int4         the change of each weight, in blocks of 64: a step size per block (fp16), then an integer per weight,
                   -127 to 127 (one byte) or -7 to 7 (half a byte, plus 8, the first of a pair in the upper half)
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError

ValueCodec = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Vector = npt.NDArray[np.float32]
BLOCK = 64
MAX_FP16 = 65504.0
MAX_BF16 = float(np.array([0x7F7F0000], dtype=np.uint32).view(np.float32)[0])
LEVELS = {"int8": 127, "int4": 7}  # largest integer of a relative codec


def is_relative(codec: ValueCodec) -> bool:
    """Return whether the codec encodes changes instead of weights."""
    return codec in LEVELS


def bytes_of(codec: ValueCodec, count: int) -> int:
    """Return the encoded size of `count` values."""
    if codec in LEVELS:
        return 2 * -(-count // BLOCK) + (count if codec == "int8" else -(-count // 2))
    return count * (4 if codec == "fp32" else 2)


def encode(values: Vector, codec: ValueCodec) -> tuple[bytes, int]:
    """Encode finite values; also return how many were clamped."""
    if codec in LEVELS:
        return _quantise(values, codec)
    if codec == "fp32":
        return values.astype("<f4").tobytes(), 0
    limit = MAX_FP16 if codec == "fp16" else MAX_BF16
    clamped = int(np.count_nonzero(np.abs(values) > limit))
    inside = np.clip(values, -limit, limit)
    if codec == "fp16":
        return inside.astype("<f2").tobytes(), clamped
    bits = inside.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
    return rounded.astype("<u2").tobytes(), clamped


def decode(data: bytes, count: int, codec: ValueCodec) -> Vector:
    """Decode `count` values; refuse bytes of another length."""
    if len(data) != bytes_of(codec, count):
        raise WireError(f"torn: {len(data)} bytes do not hold {count} values in {codec}")
    if codec in LEVELS:
        return _restore(data, count, codec)
    if codec == "bf16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype="<f4" if codec == "fp32" else "<f2").astype(np.float32)


def _quantise(values: Vector, codec: ValueCodec) -> tuple[bytes, int]:
    levels = LEVELS[codec]
    starts = np.arange(0, len(values), BLOCK)
    peak = np.maximum.reduceat(np.abs(values), starts) if len(values) else values
    step = np.minimum(peak / levels, MAX_FP16).astype("<f2")
    scale = _spread(step, len(values))
    whole = np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)
    inside = np.clip(np.rint(whole), -levels, levels).astype(np.int8)
    return step.tobytes() + _pack(inside, codec), int(np.count_nonzero(peak / levels > MAX_FP16))


def _restore(data: bytes, count: int, codec: ValueCodec) -> Vector:
    blocks = -(-count // BLOCK)
    step = np.frombuffer(data[: 2 * blocks], dtype="<f2")
    return _unpack(data[2 * blocks :], count, codec).astype(np.float32) * _spread(step, count)


def _spread(step: npt.NDArray[Any], count: int) -> Vector:
    return np.repeat(step.astype(np.float32), BLOCK)[:count]


def _pack(whole: npt.NDArray[np.int8], codec: ValueCodec) -> bytes:
    if codec == "int8":
        return whole.tobytes()
    nibbles = (np.append(whole, np.zeros(len(whole) % 2, dtype=np.int8)) + 8).astype(np.uint8)
    return (nibbles[0::2] << 4 | nibbles[1::2]).tobytes()


def _unpack(data: bytes, count: int, codec: ValueCodec) -> npt.NDArray[np.int8]:
    if codec == "int8":
        return np.frombuffer(data, dtype=np.int8)
    pairs = np.frombuffer(data, dtype=np.uint8)
    nibbles = np.stack([pairs >> 4, pairs & 15], axis=1).ravel()[:count]
    return np.asarray(nibbles.astype(np.int8) - np.int8(8))
