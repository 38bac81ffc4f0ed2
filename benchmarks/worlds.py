"""Measure the speed of city streets relative to drawn streets in one run; prints one JSON line."""

from __future__ import annotations

import argparse
import statistics

from _shared import frames_options, frames_s, report

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.city.presets import SETTINGS

HEIGHT, WIDTH, FPS = 64, 128, 5.0
PLAIN = {"passers": 0.0, "motion": 1.0}  # as many people, and as much motion, as the drawn streets have
KINDS = (("streets", {}), ("city", PLAIN), ("city", {}))


def frame_ms(count: int, repeats: int, preset: str) -> list[float]:
    """Return the median time of a frame: drawn, city as plain as drawn, city with its preset."""
    size = {"height": HEIGHT, "width": WIDTH, "fps": FPS, "duration_s": 1e4}
    streams = [open_stream(f"{family}/{preset}", seed=0, **size, **params) for family, params in KINDS]
    found: list[list[float]] = [[] for _ in streams]
    for repeat in range(repeats):
        for stream, took in zip(streams, found, strict=True):
            took.append(frames_s(stream, repeat, count, FPS) / count * 1000)
    return [statistics.median(took) for took in found]


if __name__ == "__main__":
    options = frames_options(argparse.ArgumentParser(description=__doc__), count=50, repeats=9)
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
    report(line)
