"""Measure the schedulers' gap to the exact optimum and their decision times; prints three JSON lines.

Two to six applications have five networks each, similar to pruned ones: work and memory fall with powers of the width.
The gap is the cost of a schedule above the optimum, in percent of the cost of the optimum. The accuracy goals are 1, so
that a cost is the sum of errors and weighted lateness. The gap is measured for three weights of lateness, and with
memory for 100, 75 and 55 % of the largest networks. Times are of a whole decision for six applications on one core. The
exact scheduler is timed separately where memory binds, because it then solves an integer programme. `steepest_longer`
has a finer grid, so that it takes at least as long as `lookahead`.

The second line is for eight applications that offer training. The third is for Ekya's thief, with two and with ten
cameras that have four training configurations each; its goals are a hundredth of the published simulator's time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import time

import numpy as np
from _shared import options_of, report, seconds

from driftlab.platform.core.records import TaskCost, Variant
from driftlab.platform.scheduling.base import (
    Allocation,
    Demand,
    SchedulerInput,
    Scheduling,
    TrainingConfig,
    TrainingOffer,
)
from driftlab.platform.scheduling.candidates import Candidate, LearningApp
from driftlab.platform.scheduling.costs import memory_of, tabulate
from driftlab.platform.scheduling.ekya import run_thief
from driftlab.platform.scheduling.exact import Exact
from driftlab.platform.scheduling.mcdnn import Mcdnn
from driftlab.platform.scheduling.nestdnn import NestDnn
from driftlab.platform.scheduling.programming import by_programming
from driftlab.platform.scheduling.status_quo import StatusQuo
from driftlab.platform.scheduling.uniform import Uniform
from driftlab.platform.world.measured import knee
from driftlab.platform.world.processor import accelerator_share

WIDTHS = np.array([0.2, 0.3, 0.45, 0.6, 0.8]) / 0.8
ALPHAS, MEMORIES = (0.05, 0.3, 1.0), (1.0, 0.75, 0.55)
FINER = 2  # factor of the number of units
WINDOW_S, THIEF_GOAL_MS = 200.0, {"2": 1.0, "10": 80.0}
Gaps = dict[str, list[float]]


def demand(rng: np.random.Generator, app: str) -> Demand:
    """Draw an application whose latency goal is the latency of the network at the knee among four."""
    missing = rng.uniform(0.03, 0.2) * ((1 - WIDTHS) / (1 - WIDTHS[0])) ** rng.uniform(1, 3)
    accuracy = rng.uniform(0.7, 0.95) - missing
    latency_s = rng.uniform(0.02, 0.2) * WIDTHS ** rng.uniform(1.2, 2)
    memory_bytes = np.round(rng.uniform(10e6, 200e6) * WIDTHS**2)
    measured = zip(accuracy.tolist(), memory_bytes.tolist(), latency_s.tolist(), strict=True)
    variants = tuple(Variant(str(i), a, int(m), s) for i, (a, m, s) in enumerate(measured))
    return Demand(app, 30.0, variants, accuracy_goal=1.0, latency_goal_s=4 * variants[knee(variants)].latency_s)


def window(seed: int, apps: int | None, memory: float, *, equal: bool = False) -> SchedulerInput:
    rng = np.random.default_rng(seed)
    demands = tuple(demand(rng, f"app{i}") for i in range(apps or rng.integers(2, 7)))
    if equal:
        demands = tuple(dataclasses.replace(demands[0], app=one.app) for one in demands)
    least, most = (sum(pick(v.memory_bytes for v in one.variants) for one in demands) for pick in (min, max))
    return SchedulerInput(0.0, 1.0, max(least, int(memory * most)), demands)


def cost(given: SchedulerInput, allocation: Allocation, alpha: float) -> float:
    """Add up Eq. 2, implemented independently."""
    total = 0.0
    for one, grant in zip(given.demands, allocation.grants, strict=True):
        if grant.variant is None or one.accuracy_goal is None or one.latency_goal_s is None:
            raise ValueError(f"{one.app} was left out: {grant.note}")
        variant = one.variants[grant.variant]
        late_s = max(0.0, variant.latency_s / accelerator_share(grant.inference_share) - one.latency_goal_s)
        total += one.accuracy_goal - (variant.accuracy or 0.0) + alpha * late_s
    return total


def members(alpha: float) -> dict[str, Scheduling]:
    return {
        "lookahead": NestDnn(method="lookahead", alpha=alpha, cached=False),
        "priced": NestDnn(method="priced", alpha=alpha),
        "steepest": NestDnn(method="steepest", alpha=alpha, cached=False),
        "steepest_longer": NestDnn(method="steepest", alpha=alpha, cached=False, units=100 * FINER),
        "literal": NestDnn(method="literal", alpha=alpha, cached=False),
    }


def gaps_percent(alpha: float, memory: float, repeats: int, *, equal: bool = False) -> Gaps:
    """Return each method's gaps over the same windows; `equal` means six equal applications."""
    found: Gaps = {name: [] for name in members(alpha)}
    for seed in range(repeats):
        given = window(seed, 6 if equal else None, memory, equal=equal)
        best = cost(given, Exact(alpha=alpha).allocate(given), alpha)
        for name, member in members(alpha).items():
            found[name].append(100 * (cost(given, member.allocate(given), alpha) / best - 1))
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Summarise a distribution; a gap below a millionth counts as none."""
    quantiles = {f"p{q}": round(float(np.percentile(values, q)), 4) for q in (50, 90, 99)}
    ends = {"mean": round(float(np.mean(values)), 4), "max": round(max(values), 4)}
    return {**ends, **quantiles, "exact_share": round(float(np.mean(np.array(values) < 1e-4)), 3)}


def memory_binds(given: SchedulerInput, alpha: float) -> bool:
    """Return whether the optimum without a memory limit exceeds the memory."""
    choices = tabulate(given.demands, given.memory_bytes, alpha, 100)
    return bool(memory_of(choices, by_programming(choices, "total")).sum() > choices.limit_bytes)


def decide_ms(repeats: int) -> dict[str, list[float]]:
    """Time decisions for six applications in turn; `cached` resumes a plan after a change of priority."""
    times: dict[str, list[float]] = {}
    for alpha, memory, seed in itertools.product(ALPHAS, MEMORIES, range(repeats)):
        given = window(seed, 6, memory)
        decisions = {name: (member, given) for name, member in members(alpha).items()}
        cached = NestDnn(alpha=alpha)
        changed = (dataclasses.replace(given.demands[0], priority=2.0), *given.demands[1:])
        state = cached.allocate(given).state
        decisions["cached"] = (cached, dataclasses.replace(given, demands=changed, state=state))
        decisions["max"] = (NestDnn("max", alpha=alpha, cached=False), given)
        decisions["exact_by_milp" if memory_binds(given, alpha) else "exact_by_programming"] = (
            Exact(alpha=alpha),
            given,
        )
        for name, (member, of) in decisions.items():
            decide = functools.partial(member.allocate, of)
            times.setdefault(name, []).append(1e3 * seconds(decide, time.process_time))
    return times


def eight_ms(repeats: int) -> dict[str, float]:
    """Time decisions for eight applications, each with an offer of training, as during a run."""
    offer = TrainingOffer(
        "offered",
        (
            TrainingConfig("short", TaskCost({"accelerator": 1.0})),
            TrainingConfig("long", TaskCost({"accelerator": 4.0})),
        ),
    )
    decisions = {"uniform": Uniform(), "status_quo": StatusQuo(), "mcdnn": Mcdnn(), "nestdnn": NestDnn()}
    times: dict[str, list[float]] = {name: [] for name in decisions}
    for seed, (name, member) in itertools.product(range(repeats), decisions.items()):
        given = window(seed, 8, 0.75)
        given = dataclasses.replace(given, demands=tuple(dataclasses.replace(d, learning=offer) for d in given.demands))
        state = member.allocate(given).state  # as in a run: the cached plan is resumed
        decide = functools.partial(member.allocate, dataclasses.replace(given, state=state, reason="offer"))
        times[name].append(1e3 * seconds(decide, time.process_time))
    return {name: round(float(np.median(values)), 3) for name, values in times.items()}


def thief_ms(repeats: int) -> dict[str, float]:
    """Time the thief's plans for two cameras and for ten."""
    return {count: round(float(np.median(_thief_ms(int(count), repeats))), 3) for count in THIEF_GOAL_MS}


def _thief_ms(count: int, repeats: int) -> list[float]:
    times = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        cameras = [_camera(rng, i) for i in range(count)]
        times.append(1e3 * seconds(functools.partial(run_thief, cameras, WINDOW_S), time.process_time))
    return times


def _camera(rng: np.random.Generator, index: int) -> LearningApp:
    """Draw a camera with four configurations of three seconds to five minutes.

    A quarter of the machine predicts every frame.
    """
    now, seconds = float(rng.uniform(0.3, 0.6)), np.exp(rng.uniform(np.log(3), np.log(300), 4)).tolist()
    after = rng.uniform(0.3, 0.9, 4).tolist()
    configs = tuple(Candidate(k, seconds[k], now, after[k]) for k in range(4))
    return LearningApp(index, f"camera{index}", now, candidates=configs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30, help="windows for each weight and memory")
    options = options_of(parser, repeats=1)
    by_case = {
        f"alpha={alpha} memory={memory}": gaps_percent(alpha, memory, options.repeats)
        for alpha, memory in itertools.product(ALPHAS, MEMORIES)
    }
    alike = [
        gaps_percent(alpha, memory, options.repeats, equal=True)
        for alpha, memory in itertools.product(ALPHAS, MEMORIES)
    ]
    everything, equal = (
        {name: [gap for case in cases for gap in case[name]] for name in members(0.1)}
        for cases in (by_case.values(), alike)
    )
    times = decide_ms(options.repeats)
    median_ms = {name: float(np.median(values)) for name, values in times.items()}
    line = {
        "benchmark": "schedulers",
        "gap_percent": round(float(np.mean(everything["lookahead"])), 4),
        "gap_percent_goal": 1.0,
        "scratch_ms": round(median_ms["lookahead"], 3),
        "scratch_ms_goal": 5.0,
        "cached_ms": round(median_ms["cached"], 3),
        "cached_ms_goal": 1.0,
        "cached_over_scratch": round(median_ms["cached"] / median_ms["lookahead"], 3),
        "gaps_percent": {name: spread(values) for name, values in everything.items()},
        "gaps_percent_of_equal_apps": {name: spread(equal[name]) for name in ("lookahead", "priced")},
        "mean_gaps_percent": {
            case: {name: round(float(np.mean(values)), 4) for name, values in found.items()}
            for case, found in by_case.items()
        },
        "ms": {
            name: {"p50": round(median_ms[name], 3), "p99": round(float(np.percentile(v, 99)), 3), "n": len(v)}
            for name, v in times.items()
        },
    }
    report(line)
    eight = {"benchmark": "decision", "apps": 8, "median_ms": eight_ms(options.repeats), "goal_ms": 1.0}
    report(eight)
    thief = {"benchmark": "thief", "cameras": [2, 10], "median_ms": thief_ms(options.repeats), "goal_ms": THIEF_GOAL_MS}
    report(thief)
