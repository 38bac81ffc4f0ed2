"""Measure the work of encoding a pixel, in multiply-accumulates; prints one JSON line per codec.

The work is the processor time of this process and its threads for a buffer of street frames, the median of some runs,
times the speed of one x86 core. `constant` is the value in the cost model, CODING_MACS of streaming/wire/samples.py.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import numpy.typing as npt
from _shared import options_of, report, seconds

from driftlab.datasets.catalogue import open_stream
from driftlab.platform.streaming.wire.samples import CODECS, CODING_MACS, pack

HEIGHT, WIDTH, FPS = 256, 512, 1.0
MACS_PER_S = 20e9  # of one x86 core, as in the profiles of world/hardware.py


def clip(frames: int) -> npt.NDArray[np.uint8]:
    """Draw a device's samples, one per second."""
    stream = open_stream("streets/driving_la", seed=0, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=frames / FPS)
    return stream.at(np.arange(frames) / FPS).images


def measure(images: npt.NDArray[np.uint8], codec: str, repeats: int) -> float:
    """Return the processor seconds of encoding."""
    pack(images, codec)  # warm-up
    return statistics.median(seconds(lambda: pack(images, codec), time.process_time) for _ in range(repeats))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--frames", type=int, default=10)
    options = options_of(parser, repeats=1, frames=2)
    images = clip(options.frames)
    for codec in CODECS:
        macs = measure(images, codec, options.repeats) * MACS_PER_S / images[..., 0].size
        line = {
            "benchmark": "codecs",
            "codec": codec,
            "macs_per_pixel": round(macs),
            "constant": CODING_MACS[codec],
            "ratio": round(macs / CODING_MACS[codec], 2),
        }
        report(line)
