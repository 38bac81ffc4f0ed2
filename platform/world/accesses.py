"""Energy of a network from its memory accesses (AdaScale, Eq. 3 to 5), an option of a profile.

An access is a byte that convolutions, pooling or linear layers read or write; batch norms, activations and additions
are fused into them. Multiply-accumulates cost nothing. The share of accesses that hit the cache follows from a
simulated cache of whole tensors: as the share of requests, or from access times (Eq. 5). The paper's Eq. 5 is the ratio
of two running times, which falls as caching helps: it counts misses. `times` is corrected, `paper` is literal.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.world.profile import STRICT

COUNTED = ("Conv", "Linear", "AdaptiveAvgPool", "MaxPool", "AvgPool")  # modules; others are fused into them
WORK = ("Flow", "whole", "Copy", "MatMul")  # tasks that are no modules
FALLBACK = 0.5  # the literal share if the second run takes as long as the first
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class MemoryModel:
    """Power of cache, memory and GPU while they serve accesses, and their rates; the figures are ours."""

    __pydantic_config__: ClassVar = STRICT

    cache_w: NotNegative = 2.0  # P_cpu
    cache_bytes_per_s: Positive = 40e9  # f_cpu
    memory_w: NotNegative = 0.6  # P_mem
    memory_bytes_per_s: Positive = 8e9  # f_mem
    gpu_w: NotNegative = 10.0  # P_gpu
    gpu_bytes_per_s: Positive = 60e9  # f_gpu
    gpu_share: Annotated[float, Ge(0), Le(1)] = 0.0  # of the accesses that the GPU makes
    hit_rate: Literal["requests", "times", "paper"] = "requests"
    cache_bytes: Annotated[int, Ge(0)] = 1 << 20
    runs: Annotated[int, Ge(1), Le(100)] = 2  # of the network in the simulated cache; the last one counts


@dataclass(frozen=True)
class CacheRun:
    """The requests of one run of a network, for whole tensors, and those that the cache served."""

    requests: int
    hits: int
    moved_bytes: int
    hit_bytes: int

    def time_s(self, memory: MemoryModel) -> float:
        """Return the time of all accesses."""
        missed_bytes = self.moved_bytes - self.hit_bytes
        return self.hit_bytes / memory.cache_bytes_per_s + missed_bytes / memory.memory_bytes_per_s


def is_counted(layer: LayerCost) -> bool:
    """Return whether the accesses of a layer count."""
    return layer.kind.startswith(COUNTED) or layer.kind in WORK


def counted(cost: ModelCost) -> Iterator[LayerCost]:
    """Yield the layers whose accesses count."""
    return filter(is_counted, cost.layers)


def accesses(cost: ModelCost, batch: int = 1) -> int:
    """Count accessed bytes (Eq. 4): inputs, outputs, weights and biases of each layer."""
    return sum(batch * (one.input_bytes + one.output_bytes) + one.weight_bytes for one in counted(cost))


def energy_j(accessed: float, hits: float, memory: MemoryModel = MemoryModel()) -> float:
    """Return the energy (Eq. 3) where a share of the accesses of CPU and memory hits the cache."""
    own, by_gpu = accessed * (1 - memory.gpu_share), accessed * memory.gpu_share
    cached = own * memory.cache_w * hits / memory.cache_bytes_per_s
    on_gpu = by_gpu * memory.gpu_w / memory.gpu_bytes_per_s
    return cached + on_gpu + own * memory.memory_w * (1 - hits) / memory.memory_bytes_per_s


def hit_share(miss_s: float, hit_s: float, mean_s: float) -> float:
    """Return the share of hits from the times of a run of misses, a run of hits, and the mean."""
    return min(1.0, max(0.0, (miss_s - mean_s) / (miss_s - hit_s))) if miss_s > hit_s else 0.0


def paper_share(first_s: float, mean_s: float) -> float:
    """Return Eq. 5 as written: the mean time over the first, or a half if that is not below 1."""
    ratio = 1 - (first_s - mean_s) / first_s if first_s else 1.0
    return ratio if ratio < 1 else FALLBACK


@functools.lru_cache(maxsize=4096)
def hits_of(cost: ModelCost, memory: MemoryModel) -> float:
    """Return the share of a network's accesses that hit the cache."""
    runs = simulated_runs(cost, memory.cache_bytes, memory.runs)
    if memory.hit_rate == "requests":
        return runs[-1].hits / runs[-1].requests if runs[-1].requests else 0.0
    if memory.hit_rate == "paper":
        return paper_share(runs[0].time_s(memory), sum(run.time_s(memory) for run in runs) / len(runs))
    bytes_ = runs[-1].moved_bytes
    return hit_share(bytes_ / memory.memory_bytes_per_s, bytes_ / memory.cache_bytes_per_s, runs[-1].time_s(memory))


def simulated_share(cost: ModelCost, cache_bytes: int, runs: int = 1) -> float:
    """Return the share of requests that hit the cache in the last of several runs."""
    last = simulated_runs(cost, cache_bytes, runs)[-1]
    return last.hits / last.requests if last.requests else 0.0


def simulated_runs(cost: ModelCost, cache_bytes: int, runs: int = 1) -> list[CacheRun]:
    """Simulate a cache of whole tensors that drops the least recently used.

    Each layer reads its input and its weights and writes its output.
    """
    cache, found = OrderedDict[str, int](), list[CacheRun]()
    for run in range(runs):
        requests, before = list[tuple[int, bool]](), f"picture {run}"
        for number, layer in enumerate(counted(cost)):
            after = f"output {number}"
            for name, size in ((before, layer.input_bytes), (f"weights {number}", layer.weight_bytes),
                               (after, layer.output_bytes)):  # fmt: skip
                requests.append((size, name in cache))
                _touch(cache, name, size, cache_bytes)
            before = after
        hit = [size for size, served in requests if served]
        found.append(CacheRun(len(requests), len(hit), sum(size for size, _ in requests), sum(hit)))
    return found


def _touch(cache: OrderedDict[str, int], name: str, size: int, most: int) -> None:
    """Make a tensor the most recent one; a tensor larger than the cache is not stored."""
    cache.pop(name, None)
    if size <= most:
        cache[name] = size
        while sum(cache.values()) > most:
            cache.popitem(last=False)
