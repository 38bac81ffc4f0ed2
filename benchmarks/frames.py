"""Measure the speed of rendering street frames on one core; prints one JSON line."""

from __future__ import annotations

import argparse
import statistics

from _shared import frames_options, frames_s, report

from driftlab.datasets.catalogue import WORKLOADS, open_stream

HEIGHT, WIDTH, FPS = 64, 128, 5.0


def frames_per_s(name: str, count: int, repeats: int) -> float:
    """Return the median speed over the repeats, with labels, boxes and noise."""
    stream = open_stream(name, seed=0, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=1e4)
    return statistics.median(count / frames_s(stream, repeat, count, FPS) for repeat in range(repeats))


if __name__ == "__main__":
    options = frames_options(argparse.ArgumentParser(description=__doc__), count=200, repeats=5)
    streets = [name for name in WORKLOADS if name.startswith("streets/")]
    rates = {name: round(frames_per_s(name, options.count, options.repeats)) for name in streets}
    line = {
        "benchmark": "frames",
        "size": [HEIGHT, WIDTH],
        "frames_per_s": min(rates.values()),
        "goal": 300,
        "workloads": rates,
    }
    report(line)
