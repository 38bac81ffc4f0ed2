"""Measure the speed of rendering street frames on one core; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import cv2
import numpy as np
from _options import options_of

from driftlab.datasets.catalogue import WORKLOADS, open_stream

HEIGHT, WIDTH = 64, 128


def frames_per_s(name: str, count: int, repeats: int) -> float:
    """Return the median over the repeats, with labels, boxes and noise."""
    stream = open_stream(name, seed=0, height=HEIGHT, width=WIDTH, fps=5.0, duration_s=1e4)
    rates = []
    for repeat in range(repeats):
        times_s = (np.arange(count) + repeat * count) / 5.0
        start_s = time.process_time()
        stream.at(times_s)
        rates.append(count / (time.process_time() - start_s))
    return statistics.median(rates)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    options = options_of(parser, count=5, repeats=1)
    cv2.setNumThreads(1)
    streets = [name for name in WORKLOADS if name.startswith("streets/")]
    rates = {name: round(frames_per_s(name, options.count, options.repeats)) for name in streets}
    line = {
        "benchmark": "frames",
        "size": [HEIGHT, WIDTH],
        "frames_per_s": min(rates.values()),
        "goal": 300,
        "workloads": rates,
    }
    sys.stdout.write(json.dumps(line) + "\n")
