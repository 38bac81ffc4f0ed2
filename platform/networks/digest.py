"""The digest of weights."""

from __future__ import annotations

import hashlib

import numpy as np

from driftlab.platform.core.records import Weights


def digest(weights: Weights) -> str:
    """Return 16 hexadecimal digits over names, types, shapes and bytes."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        value = np.ascontiguousarray(weights[name])
        hashed.update(f"{name}\x1f{value.dtype.str}\x1f{weights[name].shape}\x1f".encode())
        hashed.update(value.tobytes())
    return hashed.hexdigest()[:16]
