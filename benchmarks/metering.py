"""Measure the processor time that counting and audits add to a member's calls; prints JSON lines.

`counting` is the time of a counted call over that of a bare one, `audit` that of an audited call, and `expected` the
mean of both by their shares. Times are of the processor, on one thread, in turns; ratios are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from _shared import options_of, report

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.taps import tap
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.sim.nodes.metering import AUDITED, CallMeter

STREAM = Phase(on_stream=True)
SIZES = {"tiny_classifier": 32, "wide_residual": 32, "resnet18": 64}  # of frames


def times(name: str, verb: str, frames: int, calls: int) -> dict[str, list[float]]:
    """Return the seconds of bare, counted and audited calls of Tent, in turns."""
    size, member = SIZES[name], Tent()
    model = build(name, 10, seed=0).eval()
    cost = count_cost(model, size, size)
    tapped = build(name, 10, seed=0).eval()
    tap(tapped, cost)
    rng = np.random.default_rng(0)
    batch = Batch(rng.integers(0, 256, (frames, size, size, 3), dtype=np.uint8), None, rng, CLASSIFICATION)
    states = {"bare": member.prepare(model), "tapped": member.prepare(tapped)}
    meter, found = CallMeter(0, {}), {"bare": [], "counting": [], "audit": []}

    def use(network: Any, which: str) -> Any:
        if verb == "adapt":
            return member.adapt(network, states[which], batch, STREAM)
        return member.predict(network, states[which], batch)

    def metered() -> bool:
        with meter.call(verb, cost, frames) as call:  # type: ignore[arg-type]
            done = use(tapped, "tapped")
        meter.charge(call, done.passes or Passes((frames,)), learned=verb == "adapt")
        return call.operators is not None

    for turn in range(calls):
        started = time.process_time()
        use(model, "bare")
        found["bare"].append(time.process_time() - started)
        if turn % 4 == 3:
            meter._due.add(verb)  # type: ignore[arg-type]  # audit the next call
        started = time.process_time()
        audited = metered()
        found["audit" if audited else "counting"].append(time.process_time() - started)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--networks", default=",".join(SIZES))
    options = options_of(parser, calls=8, networks="tiny_classifier")
    torch.set_num_threads(1)
    for name in options.networks.split(","):
        for verb, frames in (("predict", 1), ("adapt", 32)):
            found = {which: statistics.median(one) for which, one in times(name, verb, frames, options.calls).items()}
            counting, audit = (found[which] / found["bare"] for which in ("counting", "audit"))
            expected = counting + (audit - counting) / AUDITED
            line = {"bare_ms": 1e3 * found["bare"], "counting": counting, "audit": audit, "expected": expected}
            rounded = {which: round(value, 3) for which, value in line.items()}
            report({"benchmark": "metering", "network": name, "call": verb, "frames": frames, **rounded})


if __name__ == "__main__":
    main()
