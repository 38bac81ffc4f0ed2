"""Time the choices of AdaScale and other methods among the same paths.

`RUN` is the folder of a run whose table `variants` has paths, such as one of adascale-loads; without it the paths are
invented. The benchmark prints a JSON line for each method. Every method chooses at the readings of one drawn load. The
first choice includes a policy or a list that is computed once. Of all later choices there are the median and the
longest, which has a search; `over_adascale` is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from statistics import median

import numpy as np
from _shared import options_of, report, seconds
from choosers import families

from driftlab.platform.core.records import Variant
from driftlab.platform.core.registry import member_class
from driftlab.platform.scaling.base import Budget
from driftlab.platform.world import load

METHODS = ("adascale", "adaptivenet", "adaspring", "legodnn", "adadeep")
OPERATORS = {"svd": (0.12, 0.03), "dwsep": (0.16, 0.04), "base": (0.2, 0.08)}  # accuracy and seconds of a stage
MEMORY_BYTES = 100_000_000


def invented() -> list[Variant]:
    """Return every path of four stages and three operators."""
    found = []
    for path in (path for stages in range(1, 5) for path in itertools.product(OPERATORS, repeat=stages)):
        accuracy, latency_s = (sum(parts) for parts in zip(*(OPERATORS[one] for one in path), strict=True))
        found.append(Variant(".".join(path), accuracy, 10_000, latency_s, latency_s / 8))
    return found


def choices_s(method: str, networks: list[Variant], goal_s: float, readings: int) -> list[float]:
    """Return the time of each choice."""
    member, state, spent_s = member_class("scaling", method)(), None, []
    drawn = load.draw(load.find("user"), readings / 2 + 2, np.random.default_rng(0))
    assert drawn is not None, "the load has activities"
    sensed = [drawn.sense(k / 2, MEMORY_BYTES) for k in range(readings)]

    def choose() -> None:
        nonlocal state
        state = member.select_variant(networks, budget, state)[1]

    for count in range(1, readings + 1):
        budget = Budget(MEMORY_BYTES, latency_s=goal_s, load=tuple(sensed[:count]), now_s=(count - 1) / 2)
        spent_s.append(seconds(choose))
    return spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--readings", type=int, default=200)
    parser.add_argument("--goal", type=float, default=0.37, help="deadline in seconds")
    options = options_of(parser, readings=5)
    networks = invented() if options.run is None else next(iter(families(options.run)))[1]
    usual = 0.0
    for method in METHODS:
        first_s, *later_s = choices_s(method, networks, options.goal, options.readings)
        usual = usual or median(later_s)
        times_s = {"first": first_s, "later": median(later_s), "longest": max(later_s)}
        line = {f"{name}_ms": round(1e3 * time_s, 3) for name, time_s in times_s.items()}
        report({"benchmark": "choices", "method": method, "networks": len(networks), **line,
                "over_adascale": round(median(later_s) / usual, 2)})  # fmt: skip


if __name__ == "__main__":
    main()
