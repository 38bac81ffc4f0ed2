"""Measure searchers and searches; prints one JSON line per part.

`function`: evaluations until the optimum of a constrained function of 10 000 points, median of 20 seeds; a searcher
that has not found it counts with its limit. `knapsacks`: the fraction of the exact hypervolume that the evolutionary
searcher reaches on 100 random knapsacks with two values. `stopping`: compute and held-out score of a search with early
stopping (ASHA), against a search of full trials on the same proposals; `--out` keeps both, for `driftlab report
DIR/early-stopping --compare-to DIR/full-trials`. `overhead`: time of a warm trial in addition to its cells, from one
row to the next, with one worker. `search`: time of `driftlab tune` on a space, from the start to the report.

The first two take a minute, the others some minutes on two cores. Example: python benchmarks/tune.py function knapsacks
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _shared import options_of, report

from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.core.space import Constraint, Objective, OneOf, SearchProblem, Space, hypervolume
from driftlab.platform.results import stats
from driftlab.platform.results.relations.searches import SearchResults, open_search
from driftlab.platform.tune.session import begin_search
from driftlab.platform.tune.study import Study
from driftlab.platform.tune.trial import OnTrialEnd, TrialOutcome
from driftlab.tune_spaces.catalogue import load
from driftlab.tune_spaces.run import SearchRunner

SEEDS, POINTS, LIMITS = 20, 10, {"evolution": 3000, "random": 10_000, "tpe": 500, "nsga2": 500}
KNAPSACKS, ITEMS = 100, 12
Metrics = Mapping[str, float]


def search(
    sampler: str,
    problem: SearchProblem,
    trials: int,
    measure: Callable[[Any], Metrics],
    found: Callable[[Metrics], bool] = lambda metrics: False,
) -> tuple[Study, int]:
    """Search until something is found; return the search and the number of evaluations."""
    study = Study(problem, sampler, trials, defaults=problem.space.at([0.0] * len(problem.space.domains)))
    while (proposal := study.ask()) is not None:
        number, settings = proposal
        metrics = measure(settings)
        study.tell(number, settings, metrics)
        if found(metrics):
            return study, number + 1
    return study, trials


def constrained(seed: int) -> tuple[SearchProblem, Callable[[Any], Metrics], float]:
    """Make a function of four settings with several optima; a bound forbids two thirds of the space."""
    rng = np.random.default_rng(seed)
    peak, slope, price = rng.integers(0, POINTS, 4), rng.uniform(0.5, 2, 4), rng.uniform(0.5, 1.5, 4)
    grid = np.array(list(itertools.product(range(POINTS), repeat=4)))

    def value(x: Any) -> Any:
        return -(slope * np.abs(x - peak) ** 1.5).sum(-1) + 2 * np.cos(1.7 * x).sum(-1)

    bound = float(np.quantile((price * grid).sum(-1), 0.35))
    best = float(value(grid[(price * grid).sum(-1) <= bound]).max())
    space = Space({f"x{i}": OneOf(tuple(range(POINTS)), ordered=True) for i in range(4)})

    def measure(settings: Any) -> Metrics:
        x = np.array([settings[f"x{i}"] for i in range(4)])
        return {"value": float(value(x)), "price": float((price * x).sum())}

    return SearchProblem(space, (Objective("value"),), (Constraint("price", "<=", bound),), seed), measure, best


def function(seeds: int, evaluations: int) -> dict[str, Any]:
    """Count the evaluations until the optimum for each searcher."""
    table = {}
    for name, usual in LIMITS.items():
        limit, counts = min(usual, evaluations), []
        for seed in range(seeds):
            problem, measure, best = constrained(seed)
            bound = problem.constraints[0].bound

            def is_best(metrics: Metrics, bound: float = bound, best: float = best) -> bool:
                return metrics["price"] <= bound and metrics["value"] >= best - 1e-9

            counts.append(search(name, problem, limit, measure, is_best)[1])
        table[name] = {"median": float(np.median(counts)), "worst": max(counts), "limit": limit}
    return {"points": POINTS**4, "seeds": seeds, "evaluations": table}


def knapsack(seed: int, trials: int) -> float:
    """Search a knapsack with two values; return the reached fraction of the exact hypervolume."""
    rng = np.random.default_rng(seed)
    values, weights = rng.integers(1, 100, (2, ITEMS)), rng.integers(1, 100, ITEMS)
    bound = float(weights.sum() // 2)
    every = np.array(list(itertools.product((0, 1), repeat=ITEMS)))
    allowed = every[every @ weights <= bound]
    exact = hypervolume(_front(-(allowed @ values.T).astype(float)), (0.0, 0.0))
    space = Space({f"item{i}": OneOf((0, 1)) for i in range(ITEMS)})
    objectives, constraints = (Objective("first"), Objective("second")), (Constraint("weight", "<=", bound),)

    def measure(settings: Any) -> Metrics:
        taken = np.array([settings[f"item{i}"] for i in range(ITEMS)])
        first, second = (taken @ values.T).tolist()
        return {"first": first, "second": second, "weight": float(taken @ weights)}

    found, _ = search("evolution", SearchProblem(space, objectives, constraints, seed), trials, measure)
    kept = [one.metrics for one in found.history.values() if one.metrics and one.metrics["weight"] <= bound]
    losses = np.array([[-one["first"], -one["second"]] for one in kept])
    return hypervolume(_front(losses), (0.0, 0.0)) / exact


def _front(losses: Any) -> Any:
    """Return the points of two coordinates that no other point dominates."""
    order = np.lexsort((losses[:, 1], losses[:, 0]))
    best = np.minimum.accumulate(losses[order, 1])
    return losses[order[np.concatenate(([True], best[1:] < best[:-1]))]]


def knapsacks(count: int, trials: int) -> dict[str, Any]:
    """Summarise the reached fractions of many knapsacks."""
    parts = [knapsack(seed, trials) for seed in range(count)]
    reached = sum(bool(part >= 0.99) for part in parts)
    return {
        "settings": 2**ITEMS,
        "trials": trials,
        "least": min(parts),
        "median": float(np.median(parts)),
        "at_least_0.99": reached,
    }


def _tuned(
    space: str,
    overrides: list[str],
    workers: int | None = None,
    on_end: OnTrialEnd = lambda assignment, outcome: None,
    out: Path | None = None,
) -> tuple[SearchResults, float]:
    """Run a search in a folder, or else a temporary one; return its results and its seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with (
            begin_search(load(space, overrides), out or Path(folder) / "search") as session,
            SearchRunner(ClusterConfig(workers=workers)) as on_ray,
        ):
            on_ray.run(session, on_end)
        return open_search(session.directory), time.perf_counter() - started


def stopping(space: str, overrides: list[str], out: Path | None) -> dict[str, Any]:
    """Compare a search with early stopping with one of full trials, on the same proposals."""
    full, stopped = (
        _tuned(space, [*overrides, "searcher=random", f"early_stopping={early}"], out=out and out / name)[0]
        for name, early in (("full-trials", "false"), ("early-stopping", "true"))
    )
    metric = full.objectives[0].metric
    scores = [_held_out(found, metric) for found in (full, stopped)]
    difference = stats.mean(scores[1][seed] - scores[0][seed] for seed in scores[0])
    return {
        "space": space,
        "trials": full.budget.trials,
        "stopped": stopped.budget.stopped,
        "compute": stopped.budget.streamed_s / full.budget.streamed_s,
        "compute_until_best_s": [_until_best_s(found) for found in (full, stopped)],
        "recommended": [found.best and found.best.number for found in (full, stopped)],
        metric: {"full": stats.mean(scores[0].values()), "stopped": stats.mean(scores[1].values())},
        "difference": difference,
    }


def _until_best_s(found: SearchResults) -> float:
    """Add up the streamed time of the best trial and of those before it."""
    trials = found.searched
    last = -1 if found.best is None else found.best.number
    return float(trials[trials["trial"] <= last]["streamed_s"].sum())


def _held_out(found: SearchResults, metric: str) -> dict[int, float]:
    """Average the metric of the recommended settings over the rows of each held-out seed."""
    rows = found.measures[found.measures["metric"] == metric]
    stage = "best" if (rows["stage"] == "best").any() else "defaults"
    means: dict[int, float] = rows[rows["stage"] == stage].groupby("seed")["value"].mean().to_dict()
    return means


def overhead(space: str, overrides: list[str]) -> dict[str, Any]:
    """Measure the time of a warm trial in addition to its cells: between rows, and in its process."""
    ended: list[tuple[float, TrialOutcome]] = []
    settings = [*overrides, "searcher=random", "held_out=[]"]
    _tuned(space, settings, 1, lambda _, outcome: ended.append((time.perf_counter(), outcome)))
    beyond, inside, cells = [], [], []
    for (before_s, _), (now_s, outcome) in itertools.pairwise(ended):  # the first one warms the process
        cells.append(outcome.host_seconds - outcome.host_overhead_seconds)
        inside.append(outcome.host_overhead_seconds)
        beyond.append(now_s - before_s - cells[-1])
    return {
        "space": space,
        "warm_trials": len(beyond),
        "processes": len({outcome.host_worker for _, outcome in ended}),
        "cells_median_s": float(np.median(cells)),
        "median_s": float(np.median(beyond)),
        "worst_s": max(beyond),
        "in_process_median_s": float(np.median(inside)),
    }


def whole(space: str, overrides: list[str]) -> dict[str, Any]:
    """Run a whole search; return its time and the comparison on held-out seeds."""
    found, seconds = _tuned(space, overrides)
    comparisons = {row.metric: [row.best, row.defaults, row.difference, row.verdict] for row in found.held_out()}
    return {"space": space, "trials": found.budget.trials, "seconds": seconds, "held_out": comparisons}


def main() -> None:
    """Run the chosen parts."""
    parts = ("function", "knapsacks", "stopping", "overhead", "search")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["function", "knapsacks"], help=", ".join(parts))
    parser.add_argument("--space", default="ams")
    parser.add_argument("--set", action="append", default=["size=small"], dest="overrides")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of `function`")
    parser.add_argument("--count", type=int, default=KNAPSACKS, help="number of knapsacks")
    parser.add_argument("--evaluations", type=int, default=max(LIMITS.values()), help="limit of each searcher")
    parser.add_argument("--trials", type=int, default=1000, help="trials of a knapsack")
    parser.add_argument("--out", type=Path, help="folder that keeps the searches of `stopping`")
    options = options_of(parser, seeds=1, count=1, evaluations=100, trials=100)
    run = {
        "function": lambda: function(options.seeds, options.evaluations),
        "knapsacks": lambda: knapsacks(options.count, options.trials),
        "stopping": lambda: stopping(options.space, options.overrides, options.out),
        "overhead": lambda: overhead(options.space, options.overrides),
        "search": lambda: whole(options.space, options.overrides),
    }
    for part in options.parts:
        report({"benchmark": "tune", "part": part, **run[part]()})


if __name__ == "__main__":
    main()
