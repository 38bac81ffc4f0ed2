"""Claims about NestDNN, on tables whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from driftlab.platform.results.claims import nestdnn, nestdnn_sharing, sharing
from driftlab.platform.results.claims.base import Measured, Untestable
from driftlab.platform.results.read import Tables
from driftlab.platform.results.schema import TABLES

SEEDS = (0, 1, 2)
KEEP = (0.8, 0.6, 0.45, 0.3)
SYSTEMS: list[dict[str, Any]] = [
    {"name": "ours", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "fast", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 1.0}},
    {"name": "good", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.01}},
    {"name": "base", "scaling": {"name": "independent"}, "scheduling": {"name": "status_quo"}},
    {"name": "best", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "exact", "alpha": 0.1}},
    {"name": "whole", "scaling": {"name": "fixed"}, "scheduling": {"name": "status_quo"}},
]


class Made(Tables):
    """Tables that were written by hand."""

    def __init__(self, **tables: list[dict[str, Any]]) -> None:
        super().__init__(SimpleNamespace(spec={"systems": SYSTEMS}))
        for name in TABLES:
            self._frames[name] = pd.DataFrame(tables.get(name, []), columns=TABLES[name].names)


def run_row(system: str, seed: int = 0) -> dict[str, Any]:
    cell = f"{system}/w/one/seed-{seed}"
    return {"cell": cell, "system": system, "workload": "w", "fleet": "one", "seed": seed, "status": "done"}


def built(**accuracies: dict[str, list[float]]) -> Made:
    """Give systems a family for each application; sizes and work grow by one from network to network."""
    rows = [
        {"cell": run_row(system)["cell"], "device": "d", "app": app, "variant": k, "network": str(k), "accuracy": a,
         "memory_bytes": 10 * (k + 1), "latency_ms": 1.0, "macs": 100 * (k + 1)}
        for system, apps in accuracies.items()
        for app, found in apps.items()
        for k, a in enumerate(found)
    ]  # fmt: skip
    return Made(runs=[run_row(system) for system in accuracies], variants=rows)


def share(system: str, seed: int, time_s: float, **more: Any) -> dict[str, Any]:
    usual = {"app": "a", "share": 0.5, "variant": 0, "accuracy": 0.5, "latency_ms": 100.0, "fps": 30.0, "window_s": 1.0}
    usual |= {"latency_goal_ms": 50.0, "paged_in_bytes": 0, "paged_out_bytes": 0, "energy_j": 1.0, "paging_j": 0.0}
    return {"cell": run_row(system, seed)["cell"], "device": "d", "time_s": time_s, **usual, **more}


def value(found: Measured | Untestable) -> float:
    assert isinstance(found, Measured), found
    return found.value


FAMILIES = built(
    ours={"a": [0.5, 0.6, 0.7, 0.8], "b": [0.5, 0.6, 0.7, 0.8]},
    base={"a": [0.4, 0.5, 0.7, 0.8], "b": [0.3, 0.4, 0.7, 0.8]},
    whole={"a": [0.9], "b": [0.9]},
)


def test_networks_of_one_size_are_compared_and_small_ones_apart_from_large_ones():
    assert value(nestdnn.descendants_are_better(FAMILIES)) == pytest.approx(0.075)  # 0.05 for a, 0.1 for b
    assert value(nestdnn.small_ones_gain_more(FAMILIES)) == pytest.approx(0.15)


def test_memory_is_that_of_the_largest_against_the_sum():
    assert value(nestdnn.memory_saved(FAMILIES)) == pytest.approx(1 - 40 / 100)
    assert value(nestdnn.what_nested_load(FAMILIES)) == pytest.approx(1.0)


def test_work_is_compared_with_the_whole_network():
    assert value(nestdnn.fewer_operations(FAMILIES)) == 0.0  # the whole one has 100, no descendant has less


def test_without_networks_nothing_can_be_said():
    for claim in (*nestdnn.CLAIMS, *nestdnn_sharing.CLAIMS):
        assert isinstance(claim.measure(Made()), Untestable), claim.id


def frontier() -> Made:
    """Make three alphas: a better one that is slower, one in the middle, and a faster one that is worse."""
    looks = {"good": (0.7, 200.0), "ours": (0.65, 100.0), "fast": (0.4, 50.0), "base": (0.5, 100.0)}
    rows = [
        share(system, seed, time_s, accuracy=accuracy, latency_ms=latency_ms)
        for system, (accuracy, latency_ms) in looks.items()
        for seed in SEEDS
        for time_s in (0.0, 1.0)
    ]
    return Made(runs=[run_row(system, seed) for system in looks for seed in SEEDS], shares=rows)


def test_a_frontier_is_interpolated_where_it_meets_the_status_quo():
    tables = frontier()
    assert value(nestdnn_sharing.at_equal(tables, "total", "gain", 0.0, "speedup")) == pytest.approx(1.6)
    assert value(nestdnn_sharing.at_equal(tables, "total", "speedup", 1.0, "gain")) == pytest.approx(0.15)
    assert isinstance(nestdnn_sharing.at_equal(tables, "max", "gain", 0.0, "speedup"), Untestable)


def test_the_knee_is_farthest_above_the_line_between_the_ends():
    assert value(nestdnn_sharing.at_knee(frontier(), "total", "speedup")) == pytest.approx(1.0)
    assert value(nestdnn_sharing.at_knee(frontier(), "total", "gain")) == pytest.approx(0.15)


def test_a_level_that_is_not_reached_is_not_made_up():
    points = pd.DataFrame({"gain": [0.1, 0.2], "speedup": [2.0, 1.5]})
    assert sharing.crossing(points, "gain", 0.0, "speedup") != sharing.crossing(points, "gain", 0.0, "speedup")
    assert sharing.crossing(points, "gain", 0.15, "speedup") == pytest.approx(1.75)


def test_the_gap_to_the_optimum_counts_accuracy_and_lateness():
    rows = []
    for seed in SEEDS:
        rows += [share("ours", seed, 0.0, latency_ms=150.0), share("best", seed, 0.0, accuracy=0.52, latency_ms=50.0)]
    tables = Made(runs=[run_row(name, seed) for name in ("ours", "best") for seed in SEEDS], shares=rows)
    assert value(nestdnn_sharing.gap_to_optimum(tables)) == pytest.approx(100 * (0.02 + 0.1 * 0.1))


def test_only_going_on_with_another_network_is_a_switch():
    went = ((0.0, 0, 0, 0), (1.0, 0, 0, 0), (2.0, 1, 7, 0), (3.0, 0, 0, 5), (5.0, 1, 7, 0))
    shares = [
        share("ours", 0, time_s, variant=variant, paged_in_bytes=into, paged_out_bytes=out)
        for time_s, variant, into, out in went
    ]
    tables = Made(runs=[run_row("ours")], shares=shares)
    assert sharing.switches(tables)["time_s"].tolist() == [2.0, 3.0]
    assert value(nestdnn_sharing.nested_switches(tables)) == 0.0
