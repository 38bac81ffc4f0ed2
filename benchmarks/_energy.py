"""Energy of a network by its memory accesses alone, as AdaScale has it (Eq. 3 to 5), and the share that a cache serves.

An access is a byte that convolutions, pooling or linear layers read or write; batch norms, activations and additions
are fused into them. The paper's share of hits is the ratio of two running times, which falls as caching helps: it
counts misses; `hit_share` is corrected, `paper_share` is literal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from driftlab.platform.core.records import LayerCost, ModelCost

COUNTED = ("Conv", "Linear", "AdaptiveAvgPool", "MaxPool", "AvgPool")
FALLBACK = 0.5  # of the literal share, where the second run took as long as the first


@dataclass(frozen=True)
class MemoryModel:
    """Power of cache and memory while they are read, and how much they deliver."""

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
    """Return the share of hits, from times of a run without any, of one with all, and of the runs asked about."""
    return min(1.0, max(0.0, (miss_s - mean_s) / (miss_s - hit_s))) if miss_s > hit_s else 0.0


def paper_share(first_s: float, mean_s: float) -> float:
    """Return Eq. 5 as it is written, which is the second time over the first; a half where that is no share."""
    ratio = 1 - (first_s - mean_s) / first_s
    return ratio if ratio < 1 else FALLBACK


def simulated_share(cost: ModelCost, cache_bytes: int, runs: int = 1) -> float:
    """Simulate a cache that drops the least recently used tensors; a hit is a whole tensor that lies there.

    Each layer reads its input and its weights and writes its output; of several runs the last one is told.
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
    """Make a tensor the most recent one; what does not fit at all is not kept."""
    cache.pop(name, None)
    if size <= most:
        cache[name] = size
        while sum(cache.values()) > most:
            cache.popitem(last=False)
