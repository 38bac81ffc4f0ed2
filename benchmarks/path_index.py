"""Time look-ups of the most accurate network within a latency; prints a JSON line for each size.

Sorted arrays, a B+ tree of order 16 and a scan find the same accuracy. Times are microseconds of one call: the
median and the least over many, on one core. `choice` is the full rule with limits on latency, energy, accuracy and
memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from _bplus import BPlusTree
from _shared import options_of, report

from driftlab.platform.scaling.adaptivenet import LatencyIndex
from driftlab.platform.scaling.selecting import PathLimits, PathTable, pick


def table(count: int, rng: np.random.Generator) -> PathTable:
    columns = (rng.uniform(low, high, count) for low, high in ((0.001, 0.1), (0.01, 1), (0.3, 0.9), (1e5, 1e7)))
    return PathTable(*columns)


def micros(call: Callable[[float], object], limits: list[float]) -> dict[str, float]:
    """Time a call under every limit."""
    spent = []
    for limit in limits:
        start = time.perf_counter_ns()
        call(limit)
        spent.append((time.perf_counter_ns() - start) / 1e3)
    return {"median_us": round(float(np.median(spent)), 2), "least_us": round(min(spent), 2)}


def measure(count: int, repeats: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    paths = table(count, rng)
    latencies, accuracies = paths.latency_s.tolist(), paths.accuracy.tolist()
    index = LatencyIndex.of(latencies, accuracies)
    tree = BPlusTree(list(zip(latencies, range(count), accuracies, strict=True)))
    limits = rng.uniform(0.0005, 0.12, repeats).tolist()
    for limit in limits[:100]:
        which = index.most_accurate(limit)
        assert tree.greatest(limit) == (float("-inf") if which is None else accuracies[which])
    roomy = [PathLimits(limit, 0.5, 0.4, 9e6) for limit in limits]
    choices = iter(roomy)
    return {
        "benchmark": "path_index",
        "entries": count,
        "arrays": micros(index.most_accurate, limits),
        "tree": micros(tree.greatest, limits),
        "tree_height": tree.height,
        "scan": micros(lambda limit: np.where(paths.latency_s <= limit, paths.accuracy, -1).argmax(), limits),
        "choice": micros(lambda _: pick(paths, 1.0, next(choices)), limits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[480, 100_000])
    parser.add_argument("--repeats", type=int, default=1000)
    options = options_of(parser, entries=[48], repeats=10)
    for count in options.entries:
        report(measure(count, options.repeats))


if __name__ == "__main__":
    main()
