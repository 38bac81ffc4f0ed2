"""Random numbers that depend on who asks for what, never on who asked first."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(seed: int, *purpose: str | int) -> int:
    """Give each purpose under one experiment seed a number of its own (63 bits, stable across versions)."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng_for(seed: int, *purpose: str | int) -> np.random.Generator:
    """Open a generator for one purpose; two purposes never share one, so call order cannot change results."""
    return np.random.default_rng(seed_for(seed, *purpose))
