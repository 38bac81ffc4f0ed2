"""AdaScale: its search against brute force over all paths, its trigger on two kinds of load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.selecting import PathLimits, PathObjective, PathTable, demand_distance, pick

PATHS, BUDGETS = 480, 10_000


def table(count: int = PATHS, seed: int = 0) -> PathTable:
    """Return random networks with rounded values, so that ties occur."""
    rng = np.random.default_rng(seed)
    columns = rng.uniform(0.001, 0.1, count), rng.uniform(0.01, 1, count), rng.uniform(0.3, 0.9, count)
    return PathTable(*(np.round(column, 3) for column in columns), rng.integers(10, 100, count).astype(float))


def brute_force(paths: PathTable, slowdown: float, limits: PathLimits, how: PathObjective) -> tuple[int, str]:
    """Return the choice of the specification, by plain comparisons of all paths."""
    rows = list(zip(paths.latency_s * slowdown, paths.energy_j, paths.accuracy, paths.memory_bytes, strict=True))
    held = [i for i, row in enumerate(rows) if row[3] <= limits.memory_bytes]
    if not held:
        return min(range(len(rows)), key=lambda i: rows[i][3]), "infeasible"
    quick = [i for i in held if rows[i][0] <= limits.latency_s]
    if not quick:
        return min(held, key=lambda i: rows[i][0]), "infeasible"
    good = [i for i in quick if rows[i][1] <= limits.energy_j and rows[i][2] >= limits.accuracy - 1e-12]
    flag, good = ("ok", good) if good else ("relaxed", quick)
    if how.mode == "lexicographic":
        best = max(rows[i][2] for i in good)
        good = [i for i in good if rows[i][2] >= best - how.tolerance - 1e-12]
        units = limits.latency_s, limits.energy_j
    else:
        units = 1e-3, 1e-3
    return min(good, key=lambda i: 0.5 / units[0] * rows[i][0] + 0.5 / units[1] * rows[i][1]), flag


def draws(rng: np.random.Generator, count: int) -> list[tuple[float, PathLimits]]:
    return [
        (float(slow), PathLimits(float(t), float(e), float(a), float(m)))
        for slow, t, e, a, m in zip(
            rng.uniform(1, 10, count), rng.uniform(0.0005, 0.3, count), rng.uniform(0.005, 1, count),
            rng.uniform(0, 1, count), rng.uniform(5, 100, count), strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["lexicographic", "paper"])
def test_pick_equals_brute_force_over_all_paths(mode: str):
    paths, how, seen = table(), PathObjective(mode=mode), dict[str, int]()
    for slowdown, limits in draws(np.random.default_rng(1), 300):
        found = pick(paths, slowdown, limits, how)
        assert found == brute_force(paths, slowdown, limits, how)
        seen[found[1]] = seen.get(found[1], 0) + 1
    assert min(seen[flag] for flag in ("ok", "relaxed", "infeasible")) > 10


@pytest.mark.slow
def test_pick_equals_a_matrix_comparison_for_ten_thousand_budgets():
    """The reference applies the rule to matrices of budgets and paths."""
    paths, how = table(), PathObjective()
    given = draws(np.random.default_rng(2), BUDGETS)
    slow = np.array([[one] for one, _ in given])
    t, e, a, m = (
        np.array([[getattr(limits, name)] for _, limits in given])
        for name in ("latency_s", "energy_j", "accuracy", "memory_bytes")
    )
    latency = slow * paths.latency_s
    held = paths.memory_bytes <= m
    quick = held & (latency <= t)
    good = quick & (paths.energy_j <= e) & (paths.accuracy >= a - 1e-12)
    ok = good.any(axis=1, keepdims=True)
    good = np.where(ok, good, quick)
    best = np.where(good, paths.accuracy, -1).max(axis=1, keepdims=True)
    good &= paths.accuracy >= best - 0.01 - 1e-12
    cost = np.where(good, 0.5 / t * latency + 0.5 / e * paths.energy_j, np.inf).argmin(axis=1)
    fastest = np.where(held, latency, np.inf).argmin(axis=1)
    some, none = quick.any(axis=1), ~held.any(axis=1)
    expected = np.where(none, paths.memory_bytes.argmin(), np.where(some, cost, fastest))
    flags = np.where(some, np.where(ok[:, 0], "ok", "relaxed"), "infeasible")
    found = [pick(paths, slowdown, limits, how) for slowdown, limits in given]
    assert [which for which, _ in found] == expected.tolist()
    assert [flag for _, flag in found] == flags.tolist()


def test_the_literal_objective_ignores_accuracy():
    for mode, chosen in (("paper", 0), ("lexicographic", 4)):
        assert pick(PathTable.of(LADDER), 1.0, PathLimits(latency_s=1.0), PathObjective(mode=mode)) == (chosen, "ok")
    floor = PathLimits(latency_s=1.0, accuracy=0.65)
    assert pick(PathTable.of(LADDER), 1.0, floor, PathObjective(mode="paper")) == (2, "ok")


def test_the_distance_of_eq_1_is_that_from_the_mean_capability():
    """For four demands and three capabilities: the squared distance from the mean, plus a constant."""
    rng = np.random.default_rng(4)
    demands, capabilities = rng.uniform(0, 1, (20, 4)), rng.uniform(0, 1, 3)
    apart = 3 * ((demands - capabilities.mean()) ** 2).sum(axis=1) + 4 * 3 * capabilities.var()
    assert demand_distance(demands, capabilities) ** 2 == pytest.approx(apart, rel=1e-12)
    limits = PathLimits(latency_s=0.1, energy_j=1.0, memory_bytes=100)
    which, flag = pick(PathTable.of(LADDER), 2.0, limits, PathObjective(mode="distance"))
    rows = [(one.energy_j, 2 * one.latency_s / 0.1, 1 - one.accuracy, one.memory_bytes / 100) for one in LADDER]
    assert which == min(range(5), key=lambda one: sum((value - 0.5) ** 2 for value in rows[one]))
    assert flag == "ok"


LADDER = tuple(Variant(f"v{i}", 0.5 + 0.1 * i, 10 * (i + 1), 0.01 * (i + 1), 0.1 * (i + 1)) for i in range(5))


def run(
    loads: list[float],
    limit_s: float = 0.045,
    *,
    energy_j: float | None = None,
    networks: Sequence[Variant] = LADDER,
    estimates: Sequence[Sequence[Variant]] = (),
    **settings: Any,
) -> list[int]:
    """Select at two readings per second; `estimates` has the networks with accuracies at each reading."""
    member = AdaScale(accuracy_loss=1.0, **settings)
    state, chosen, readings = None, [], []
    for step, cpu in enumerate(loads):
        readings.append(LoadReading(step / 2, cpu, 1000))
        budget = Budget(latency_s=limit_s, energy_j=energy_j, load=tuple(readings), now_s=step / 2)
        which, state = member.select_variant(estimates[step] if estimates else networks, budget, state)
        chosen.append(which)
    return chosen


def switches(chosen: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(chosen))


def test_a_small_oscillation_of_the_load_causes_no_switch():
    calm = [0.1 + 0.02 * (-1) ** step for step in range(40)]  # the second largest takes 0.0430 to 0.0448 s
    assert switches(run(calm)) == 0
    straddling = [0.123 + 0.02 * (-1) ** step for step in range(40)]
    assert switches(run(straddling)) <= 1


def test_a_load_step_switches_at_once_and_its_end_after_the_patience():
    chosen = run([0.0] * 4 + [0.8] * 6 + [0.0] * 8)
    assert chosen[:4] == [3] * 4
    assert chosen[4:10] == [0] * 6
    assert chosen[10:12] == [0, 0]
    assert set(chosen[12:]) == {3}
    assert run([0.0, 0.8, 0.0, 0.0, 0.0, 0.0], dwell_s=2.0)[-2:] == [0, 3]


def test_a_better_path_requires_headroom():
    nearly = 0.041  # the fourth path takes 0.04 s: within the limit, not within nine tenths of it
    assert run([0.5] + [0.0] * 8, limit_s=nearly)[-1] == 2
    assert run([0.5] + [0.0] * 8, limit_s=nearly, headroom=1.0)[-1] == 3


def test_the_ar_forecast_reacts_to_a_rising_load_before_persistence():
    rising = [0.02 * step for step in range(40)]
    by = {kind: run(rising, forecaster=kind) for kind in ("persistence", "ar")}
    first = {kind: next(step for step, which in enumerate(chosen) if which < 2) for kind, chosen in by.items()}
    assert first["ar"] < first["persistence"]


def test_forecast_returns_the_expected_load():
    member = AdaScale()
    _, state = member.select_variant(LADDER, Budget(load=(LoadReading(0.0, 0.3, 1000),)))
    assert member.forecast(state) == 0.3
    assert member.forecast(None) is None
    assert member.forecast(member.select_variant(LADDER, Budget())[1]) is None


def test_extreme_loads_and_budgets_have_a_path():
    member = AdaScale(accuracy_loss=1.0)
    for budget in (
        Budget(latency_s=0.045, share=0.0),
        Budget(latency_s=0.045, load=(LoadReading(0, 1.5, 0, clock=0.0),)),
        Budget(latency_s=0.045, load=(LoadReading(0, 1.0, 0, battery=0.0),), memory_bytes=0),
    ):
        assert member.select_variant(LADDER, budget)[0] == 0
    assert member.select_variant(LADDER, Budget())[0] == 4
    assert member.select_variant(LADDER, Budget(variant=2))[0] == 2
    with pytest.raises(RequestError, match="variant is 5"):
        member.select_variant(LADDER, Budget(variant=5))
    unknown = tuple(Variant(str(i), math.nan, 1, 0.01) for i in range(2))
    assert member.select_variant(unknown, Budget(latency_s=0.1))[0] == 0


def test_an_exceeded_memory_limit_switches_at_once():
    member = AdaScale(accuracy_loss=1.0)
    which, state = member.select_variant(LADDER, Budget(memory_bytes=100))
    assert which == 4
    which, state = member.select_variant(LADDER, Budget(memory_bytes=35, now_s=0.1), state)
    assert which == 2


@pytest.mark.parametrize("goal_j", [0.05, 0.25])
def test_an_unreachable_energy_goal_causes_no_oscillation(goal_j: float):
    """The load oscillates around the limit of the fourth path; the third takes 0.5 J and the first 0.3 J."""
    expensive = tuple(replace(one, energy_j=one.energy_j + 0.2) for one in LADDER)
    straddling = [0.123 + 0.02 * (-1) ** step for step in range(40)]
    assert switches(run(straddling, networks=expensive, energy_j=goal_j)) <= 1
    assert set(run(straddling, networks=expensive, energy_j=0.45)) == {1}


def test_an_energy_goal_is_restored_after_the_patience():
    """Only the slowest path meets the goal: small changes of the load must not cause oscillation."""
    frugal = tuple(replace(one, energy_j=0.9 - one.energy_j, accuracy=0.7) for one in LADDER)  # 0.8 to 0.4 J
    settings = {"networks": frugal, "limit_s": 0.0501, "energy_j": 0.45}
    straddling = [0.0 if step % 2 == 0 else 0.01 for step in range(40)]
    assert switches(run(straddling, **settings)) <= 1
    chosen = run([0.0] * 4 + [0.5] * 4 + [0.0] * 6, headroom=1.0, **settings)
    assert chosen[3] == 4
    assert max(chosen[4:8]) < 4
    assert chosen[8:10] == [chosen[7]] * 2
    assert chosen[-1] == 4


def test_a_better_path_violates_no_goal_that_the_running_one_meets():
    """With headroom only paths above the energy goal fit; the running one meets it, and stays."""
    two = (Variant("quick", 0.8, 10, 0.01, 1.0), Variant("frugal", 0.6, 10, 0.04, 0.1))
    assert run([0.0] * 10, networks=two, limit_s=0.041, energy_j=0.5) == [1] * 10


def test_an_energy_goal_overrides_the_default_floor_and_no_accuracy_goal():
    budget = Budget(latency_s=0.1, energy_j=0.25)
    assert AdaScale(accuracy_loss=0.04).select_variant(LADDER, budget)[0] == 1
    assert AdaScale(accuracy_loss=0.35).select_variant(LADDER, budget)[0] == 1
    assert AdaScale().select_variant(LADDER, replace(budget, accuracy=0.85))[0] == 4  # both goals are dropped
    floors = PathLimits(latency_s=0.1, energy_j=0.25, floor=0.85)
    assert pick(PathTable.of(LADDER), 1.0, floors) == (1, "ok")
    assert pick(PathTable.of(LADDER), 1.0, replace(floors, floor=0.0, accuracy=0.85)) == (4, "relaxed")


def test_small_changes_of_accuracies_reset_no_trigger():
    """Small changes of estimates do not restart the dwell time and cause no immediate switch."""
    trembling = [tuple(replace(one, accuracy=one.accuracy + 1e-6 * step) for one in LADDER) for step in range(40)]
    straddling = [0.123 + 0.02 * (-1) ** step for step in range(40)]
    assert switches(run(straddling, estimates=trembling)) <= 1
    stepping = [0.0] * 4 + [0.8] * 6 + [0.0] * 8
    assert run(stepping, estimates=trembling) == run(stepping)


def test_changed_accuracies_select_another_path():
    member, state, chosen = AdaScale(), None, []
    turned = tuple(replace(one, accuracy=1 - one.accuracy) for one in LADDER)
    for step, networks in enumerate([LADDER] * 2 + [turned] * 4):
        which, state = member.select_variant(networks, Budget(latency_s=0.1, now_s=step / 2), state)
        chosen.append(which)
    assert chosen == [4, 4, 4, 4, 0, 0]
    which, state = member.select_variant(
        LADDER[:2], Budget(latency_s=0.1, now_s=4.0), state
    )  # other networks: a new state
    assert which == 1


def test_a_violated_accuracy_goal_switches_at_once():
    member, budget = AdaScale(mode="paper"), Budget(latency_s=0.1, accuracy=0.65)
    which, state = member.select_variant(LADDER, budget)
    assert which == 2
    worse = tuple(replace(one, accuracy=one.accuracy - 0.1) for one in LADDER)
    assert member.select_variant(worse, replace(budget, now_s=0.1), state)[0] == 3


@pytest.mark.filterwarnings("error")
def test_a_processor_at_standstill_runs_a_path_that_fits_in_memory():
    few = PathTable(*(np.array(column) for column in ([0.01, 0.03, 0.02], [0.5] * 3, [0.6] * 3, [10.0, 1.0, 1.0])))
    for mode in ("lexicographic", "paper", "distance"):
        for limits in (PathLimits(latency_s=0.06, memory_bytes=5), PathLimits(memory_bytes=5)):
            assert pick(few, math.inf, limits, PathObjective(mode=mode))[0] == 2
