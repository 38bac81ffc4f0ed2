"""Measure how fast city streets are made beside the drawn ones, both in one run; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import cv2
import numpy as np
from _options import options_of

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.city.presets import SETTINGS

HEIGHT, WIDTH, FPS = 64, 128, 5.0
PLAIN = {"passers": 0.0, "motion": 1.0}  # as many people, and as much motion, as the drawn streets have
KINDS = (("streets", {}), ("city", PLAIN), ("city", {}))


def frame_ms(count: int, repeats: int, preset: str) -> list[float]:
    """Give the median time of a frame: drawn, city as plain as that, city with the settings of its preset."""
    size = {"height": HEIGHT, "width": WIDTH, "fps": FPS, "duration_s": 1e4}
    streams = [open_stream(f"{family}/{preset}", seed=0, **size, **params) for family, params in KINDS]
    found: list[list[float]] = [[] for _ in streams]
    for repeat in range(repeats):
        times_s = (np.arange(count) + repeat * count) / FPS
        for stream, took in zip(streams, found, strict=True):
            start_s = time.process_time()
            stream.at(times_s)
            took.append((time.process_time() - start_s) / count * 1000)
    return [statistics.median(took) for took in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    options = options_of(parser, count=2, repeats=1)
    cv2.setNumThreads(1)
    rows = {preset: frame_ms(options.count, options.repeats, preset) for preset in SETTINGS}
    plain = {preset: round(drawn / city, 2) for preset, (drawn, city, _) in rows.items()}
    line = {
        "benchmark": "worlds",
        "size": [HEIGHT, WIDTH],
        "speed_of_city": round(statistics.median(plain.values()), 2),
        "goal": 0.9,
        "plain": plain,
        "with_settings": {preset: round(drawn / city, 2) for preset, (drawn, _, city) in rows.items()},
    }
    sys.stdout.write(json.dumps(line) + "\n")
