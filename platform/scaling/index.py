"""An index of networks by latency: two sorted arrays answer which is the most accurate one within a limit.

A load that slows all networks down alike keeps their order, so that the limit is divided instead of the index rebuilt.
The paper keeps a B+ tree; `benchmarks/path_index.py` measures one beside this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LatencyIndex:
    """Networks in order of latency, and the most accurate one of each prefix."""

    latencies_s: tuple[float, ...]
    numbers: tuple[int, ...]
    best: tuple[int, ...]  # of each prefix, the quicker and then the lower number of equals

    @classmethod
    def of(cls, latencies_s: Sequence[float], accuracies: Sequence[float]) -> LatencyIndex:
        """Sort networks by latency, equals by accuracy from the best on."""
        order = sorted(range(len(latencies_s)), key=lambda which: (latencies_s[which], -accuracies[which], which))
        best: list[int] = []
        for which in order:
            before = best[-1] if best else which
            best.append(which if accuracies[which] > accuracies[before] else before)
        return cls(tuple(latencies_s[which] for which in order), tuple(order), tuple(best))

    def most_accurate(self, limit_s: float) -> int | None:
        """Return the most accurate network that takes at most so long; None where none does."""
        count = bisect_right(self.latencies_s, limit_s)
        return self.best[count - 1] if count else None

    def front(self) -> tuple[int, ...]:
        """List the networks that no other one beats in latency and accuracy, from the quickest on."""
        return tuple(which for place, which in enumerate(self.best) if place == 0 or which != self.best[place - 1])
