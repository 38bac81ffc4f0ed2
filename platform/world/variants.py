"""Functions of a set of networks: its default network, and the memory that a switch moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftlab.platform.core.records import Variant


def knee(variants: Sequence[Variant]) -> int:
    """Find the bend of accuracy over log size: the point farthest above the line from smallest to largest."""
    size = np.log([max(variant.memory_bytes, 1) for variant in variants])
    if np.ptp(size) == 0:  # of unknown or equal size: order by latency
        size = np.log([variant.latency_s for variant in variants])
    accuracy = np.array([variant.accuracy or 0.0 for variant in variants])
    if np.ptp(size) == 0 or np.ptp(accuracy) == 0:
        return int(size.argmin())
    least, most = int(size.argmin()), int(size.argmax())
    along = (size - size[least]) / (size[most] - size[least])
    above = accuracy - (accuracy[least] + along * (accuracy[most] - accuracy[least]))
    return int(above.argmax())


def paged_bytes(variants: Sequence[Variant], before: int | None, after: int | None, *, nested: bool) -> tuple[int, int]:
    """Count the bytes paged in and out by a switch: of nested networks the difference, of those with parts the parts in
    which they differ, of others all.
    """
    held, wanted = (0 if which is None else variants[which].memory_bytes for which in (before, after))
    if before == after:
        return 0, 0
    there, needed = (dict(() if which is None else variants[which].parts) for which in (before, after))
    if there or needed:
        loaded = sum(size for name, size in needed.items() if name not in there)
        return loaded, sum(size for name, size in there.items() if name not in needed)
    return (max(0, wanted - held), max(0, held - wanted)) if nested else (wanted, held)
