"""Measure the wire format at the paper's size, 5 % of 2 M parameters; prints one JSON line.

The mask is uniformly random, the worst case. `bytes_over_bound` compares the message with log2 of the number of masks
plus the unencoded values; `int4_over_gzip_fp16` compares it with AMS's format. `codec_ms` is the time of the slowest
format on one core to encode and apply a message.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
from _shared import options_of, report

from driftlab.platform.networks.vector import Layout
from driftlab.platform.streaming.wire import delta
from driftlab.platform.streaming.wire.delta import Change, Format

SIZE = 2_000_000
FRACTION = 0.05
FORMATS = (Format("fp16", "gzip"), Format("fp16", "gaps"), Format("fp16"), Format("int8"), Format("int4"))


def change() -> Change:
    rng = np.random.default_rng(0)
    before = rng.normal(0, 0.1, SIZE).astype(np.float32)
    mask = np.zeros(SIZE, dtype=bool)
    mask[rng.choice(SIZE, round(FRACTION * SIZE), replace=False)] = True
    after = np.where(mask, before + rng.normal(0, 0.01, SIZE), before).astype(np.float32)
    return Change(before, after, mask, 1, 0)


def mask_bound_bytes(size: int, count: int) -> float:
    choices = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return choices / math.log(2) / 8


def measure(made: Change, form: Format, repeats: int) -> tuple[int, float]:
    """Return the bytes of a message and the median milliseconds to encode and apply it."""
    layout, times_ms, data = Layout(("w",), ((SIZE,),)), [], b""
    for _ in range(repeats):
        start_s = time.process_time()
        data = delta.encode(made, layout, form).data
        delta.apply(data, made.before, layout, base=0)
        times_ms.append(1e3 * (time.process_time() - start_s))
    return len(data), statistics.median(times_ms)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = options_of(parser, repeats=1)
    made = change()
    measured = {f"{form.values}_{form.mask}": measure(made, form, options.repeats) for form in FORMATS}
    count = round(FRACTION * SIZE)
    bound = mask_bound_bytes(SIZE, count) + 2 * count
    published = measured["fp16_gzip"][0]
    line = {
        "benchmark": "delta",
        "bytes_over_bound": round(measured["fp16_rice"][0] / bound, 4),
        "bytes_over_bound_goal": 1.03,
        "int4_over_gzip_fp16": round(measured["int4_rice"][0] / published, 3),
        "int4_over_gzip_fp16_goal": 0.5,
        "int8_over_gzip_fp16": round(measured["int8_rice"][0] / published, 3),
        "codec_ms": round(max(ms for _, ms in measured.values()), 1),
        "codec_ms_goal": 50,
        "bytes": {name: size for name, (size, _) in measured.items()},
        "ms": {name: round(ms, 1) for name, (_, ms) in measured.items()},
    }
    report(line)
