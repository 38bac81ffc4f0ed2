"""Compute the energy of a network from its memory accesses alone, as AdaScale does (Eq. 3 to 5).

An access is a byte that convolutions, pooling or linear layers read or write; batch norms, activations and additions
are fused into them. The paper's share of cache hits is the ratio of two running times, which falls as caching helps:
it counts misses. `hit_share` is corrected, `paper_share` is literal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from driftlab.platform.core.records import LayerCost, ModelCost

COUNTED = ("Conv", "Linear", "AdaptiveAvgPool", "MaxPool", "AvgPool")
FALLBACK = 0.5  # the literal share if the second run takes as long as the first


@dataclass(frozen=True)
class MemoryModel:
    """Power of cache and memory while they are read, and their bandwidth."""

    cache_w: float = 2.0
    cache_bytes_per_s: float = 40e9
    memory_w: float = 0.6
    memory_bytes_per_s: float = 8e9


def counted(cost: ModelCost) -> Iterator[LayerCost]:
    """Yield the layers whose accesses count."""
    return (layer for layer in cost.layers if layer.kind.startswith(COUNTED))


def accesses(cost: ModelCost, batch: int = 1) -> int:
    """Count accessed bytes (Eq. 4): inputs, outputs, weights and biases of each layer."""
    return sum(batch * (one.input_bytes + one.output_bytes) + one.weight_bytes for one in counted(cost))


def energy_j(accessed: float, hits: float, memory: MemoryModel = MemoryModel()) -> float:
    """Return the energy (Eq. 3) where a share of the accesses hits the cache."""
    cached = accessed * memory.cache_w * hits / memory.cache_bytes_per_s
    return cached + accessed * memory.memory_w * (1 - hits) / memory.memory_bytes_per_s


def hit_share(miss_s: float, hit_s: float, mean_s: float) -> float:
    """Return the share of hits from the times of a run of misses, a run of hits, and the mean."""
    return min(1.0, max(0.0, (miss_s - mean_s) / (miss_s - hit_s))) if miss_s > hit_s else 0.0


def paper_share(first_s: float, mean_s: float) -> float:
    """Return Eq. 5 as written: the second time over the first, or a half if that is not below 1."""
    ratio = 1 - (first_s - mean_s) / first_s
    return ratio if ratio < 1 else FALLBACK


def simulated_share(cost: ModelCost, cache_bytes: int, runs: int = 1) -> float:
    """Simulate a cache of whole tensors that drops the least recently used; return its share of hits.

    Each layer reads its input and its weights and writes its output. Of several runs only the last is counted.
    """
    cache: OrderedDict[str, int] = OrderedDict()
    hits = touched = 0
    for run in range(runs):
        hits = touched = 0
        before = f"picture {run}"
        for number, layer in enumerate(counted(cost)):
            after = f"output {number}"
            for name, size in ((before, layer.input_bytes), (f"weights {number}", layer.weight_bytes),
                               (after, layer.output_bytes)):  # fmt: skip
                touched += 1
                hits += name in cache
                _touch(cache, name, size, cache_bytes)
            before = after
    return hits / touched if touched else 0.0


def _touch(cache: OrderedDict[str, int], name: str, size: int, most: int) -> None:
    """Make a tensor the most recent one; a tensor larger than the cache is not stored."""
    cache.pop(name, None)
    if size <= most:
        cache[name] = size
        while sum(cache.values()) > most:
            cache.popitem(last=False)
