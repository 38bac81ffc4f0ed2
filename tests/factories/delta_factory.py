"""Changes and layouts for tests of the wire format."""

from __future__ import annotations

import numpy as np

from driftlab.platform.networks.vector import Layout
from driftlab.platform.streaming.wire.delta import Change


def layout(size: int, name: str = "w") -> Layout:
    return Layout((name,), ((size,),))


def change(size: int, count: int, seed: int = 0, version: int = 1, base: int | None = 0) -> Change:
    rng = np.random.default_rng(seed)
    before = rng.normal(0, 0.1, size).astype(np.float32)
    mask = np.zeros(size, dtype=bool)
    mask[rng.choice(size, count, replace=False)] = True
    after = np.where(mask, before + rng.normal(0, 0.01, size), before).astype(np.float32)
    return Change(before, after, None if base is None else mask, version, base)
