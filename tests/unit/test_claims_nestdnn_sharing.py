"""Claims about NestDNN's sharing of a device, on tables with known verdicts."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
from claims_factory import SEEDS, word
from nestdnn_factory import CLAIMS, SPEC, claim, share, shared, value
from tables_factory import WAITS, Made, numbers_in, run_row

from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.relations import sharing
from driftlab.platform.results.relations.base import Untestable

# --- the frontier

RESULTS: dict[str, tuple[float, float, float]] = {  # accuracy, time per frame in ms, energy in J
    "base": (0.5, 100.0, 1.0),  # 10 frames
    "good": (0.7, 200.0, 1.0), "ours": (0.65, 80.0, 0.55), "fast": (0.4, 50.0, 1.0),  # 5, 12.5 and 20; 11 are shown
    "max-0.01": (0.8, 200.0, 1.0), "max-0.1": (0.72, 50.0, 0.22), "max-1.0": (0.45, 25.0, 1.0),
}  # fmt: skip
FRONTIER = {
    "N-11": 1.25 + 0.75 * 0.6,
    "N-12": 0.2 - 0.05 * 2 / 3,
    "N-13": 1.25,
    "N-13b": 0.15,
    "N-14": 2 + 2 * 0.22 / 0.27,
    "N-14b": 0.3 - 0.08 / 3,
    "N-14c": 2.0,
    "N-14d": 0.22,
    "N-15": 2.0,  # 0.1 J a frame against 0.55 J for 11
    "N-15b": 5.0,
}


def along(results: dict[str, tuple[float, float, float]], workload: str = "w") -> list[dict[str, Any]]:
    return [
        share(system, seed, time_s, workload, accuracy=accuracy, latency_ms=latency_ms, energy_j=energy_j, fps=11.0)
        for system, (accuracy, latency_ms, energy_j) in results.items()
        for seed in SEEDS
        for time_s in (0.0, 1.0)
    ]


@pytest.mark.parametrize(("name", "expected"), FRONTIER.items())
def test_a_frontier_is_met_at_its_knee_or_where_it_equals_the_status_quo(name: str, expected: float):
    tables = shared(along(RESULTS))
    assert value(name, tables) == pytest.approx(expected)
    assert word(name, tables) == "reproduced"


@pytest.mark.parametrize("name", FRONTIER)
def test_a_frontier_below_the_status_quo_is_not_reproduced(name: str):
    below = {"": (0.6, 200.0, 1.0), "middle": (0.48, 100 / 0.9, 1.0), "end": (0.0, 100 / 1.1, 1.0)}
    order = [["good", "ours", "fast"], ["max-0.01", "max-0.1", "max-1.0"]]
    results = {system: result for systems in order for system, result in zip(systems, below.values(), strict=True)}
    assert word(name, shared(along({"base": RESULTS["base"], **results}))) == "not reproduced"


@pytest.mark.slow
def test_one_objective_gives_no_verdict_on_the_other():
    rows = along({name: result for name, result in RESULTS.items() if "max" not in name})
    for name in FRONTIER:
        assert isinstance(CLAIMS[name].measure(shared(rows)), Untestable) == name.startswith(("N-14", "N-15b")), name


def test_other_schedulers_are_not_on_the_frontier():
    longer = along({f"literal-{alpha}": (0.0, 1.0, 1.0) for alpha in (0.01, 0.1, 0.3, 1.0)})
    assert value("N-13", shared([*along(RESULTS), *longer])) == pytest.approx(FRONTIER["N-13"])


def test_of_several_goals_the_worst_counts():
    better = {**RESULTS, "ours": (0.68, 80.0, 0.55)}
    found = claim("N-12", shared([*along(RESULTS), *along(better, "v")]))
    assert found.value == pytest.approx(FRONTIER["N-12"])
    assert found.note == "the lowest of v 0.187, w 0.167"


@pytest.mark.parametrize("seeds", [SEEDS, SEEDS[:1]])
def test_a_goal_counts_with_all_of_its_traces_or_not_at_all(seeds: tuple[int, ...]):
    """Traces of `v` that are more accurate than the status quo to the end of the frontier never meet it."""
    above = [f"fast/v/one/seed-{seed}" for seed in seeds]
    never = [row | ({"accuracy": 0.6} if row["cell"] in above else {}) for row in along(RESULTS, "v")]
    found = claim("N-11", shared([*along(RESULTS), *never]))
    assert (found.value, found.n) == (pytest.approx(FRONTIER["N-11"]), 3)
    note = f"frontiers that end before speedup at equal gain: {len(seeds)} of 3 on v"
    assert found.note == f"on w {FRONTIER['N-11']:.3g}; {note}"
    refused = CLAIMS["N-11"].measure(shared(never))
    assert isinstance(refused, Untestable)
    assert refused.reason == note


def test_a_waiting_application_has_no_frames_and_no_accuracy():
    later: dict[str, dict[str, Any]] = {"ours": WAITS, "base": {"energy_j": 3.0}}
    rows = [row | (later.get(row["cell"].partition("/")[0], {}) if row["time_s"] else {}) for row in along(RESULTS)]
    (found,) = sharing.frontier(shared(rows), "total").query("system == 'ours' and seed == 0").to_dict("records")
    assert found["gain"] == pytest.approx(0.15)
    assert found["speedup"] == pytest.approx(1.25 / 2)
    assert found["energy_ratio"] == pytest.approx(0.2 / 0.05)


@pytest.mark.parametrize(
    ("gains", "lowest"), [([0.1, -0.1, 0.1, 0.2], 1.75), ([-0.1, 0.0, 0.0, 0.1], 1.5), ([0.1, -0.1, 0.0, 0.0], 1.0)]
)
def test_of_several_crossings_the_lowest_counts(gains: list[float], lowest: float):
    points = pd.DataFrame({"gain": gains, "speedup": [3.0, 2.0, 1.5, 1.0]})
    assert sharing.crossing(points, "gain", 0.0, "speedup") == pytest.approx(lowest)


# --- the optimum, and time


def test_the_gap_to_the_optimum_counts_accuracy_and_lateness_of_running_networks():
    rows = []
    for seed in SEEDS:
        rows += [share("ours", seed, 0.0, latency_ms=150.0), share("best", seed, 0.0, accuracy=0.52, latency_ms=50.0)]
        rows += [share(name, seed, 0.0, accuracy=0.02, latency_ms=50.0) for name in ("literal-0.1", "lookahead-anew")]
    found = claim("N-16", shared(rows))
    assert found.value == pytest.approx(100 * (0.02 + 0.1 * 0.1))
    assert found.note == "ours 3; not counted: literal-0.1 50, lookahead-anew 50"


def test_the_highest_cost_of_a_window_is_that_of_the_application_farthest_from_its_goal():
    rows = [
        share("ours", 0, 0.0, app="a", accuracy=0.95, latency_ms=50.0),
        share("ours", 0, 0.0, app="b", accuracy=0.5, latency_ms=50.0),
        share("ours", 0, 0.0, app="c", accuracy=0.75, latency_ms=150.0, accuracy_goal=0.9),
    ]
    usual = {"cell": rows[0]["cell"], "device": "d"}
    known = [(app, accuracy) for app in "abc" for accuracy in (0.5 + 0.4 * (app == "a"), 1)]
    least = [{**usual, "app": app, "accuracy": 0.2, "val_accuracy": accuracy} for app, accuracy in known]
    tables = shared(rows, variants=least)
    found = {objective: sharing.costs(tables, {"ours": 0.1}, objective)["ours"] for objective in ("total", "max")}
    assert found["total"].tolist() == pytest.approx([-0.05 + 0.0 + 0.15 + 0.01])
    assert found["max"].tolist() == pytest.approx([0.16])


def test_costs_use_predicted_accuracies_and_gains_use_measured_ones():
    known = {"ours": 0.9, "base": 0.4}
    rows = [share(name, 0, 0.0, latency_ms=50.0) | {"val_accuracy": each} for name, each in known.items()]
    found = sharing.costs(shared(rows), {"ours": 0.1, "base": 0.1})
    assert (found["base"] - found["ours"]).tolist() == pytest.approx([0.5])
    assert sharing.gains_over_status_quo(shared(rows), ["ours"])["gain"].tolist() == [0.0]


def test_looking_ahead_is_compared_with_the_best_of_the_steepest_walks():
    accuracies = {"ours": 0.9, "lookahead-anew": 0.6, "steepest-anew": 0.5, "steepest-fine": 0.55, "steepest": 0.9}
    rows = [
        share(name, seed, 0.0, accuracy=accuracy, host_schedule_seconds=0.001 * (k + 1))
        for k, (name, accuracy) in enumerate(accuracies.items())
        for seed in SEEDS
    ]
    found = claim("NEST-1", shared(rows))
    assert found.value == pytest.approx(5.0)
    assert re.findall(r"(\S+) (\d) ms", found.note) == [
        ("lookahead-anew", "2"),
        ("steepest-anew", "3"),
        ("steepest-fine", "4"),
    ]
    assert word("NEST-1", shared(rows)) == "reproduced"


def test_the_composition_is_compared_with_each_of_its_parts():
    scores = {"ams+nested": 0.50, "nestdnn": 0.40, "ams": 0.55}
    rows = [{**run_row(name, seed), "score": score + seed / 100} for name, score in scores.items() for seed in SEEDS]
    tables = Made(SPEC, runs=rows)
    assert (value("NEST-2", tables), word("NEST-2", tables)) == (pytest.approx(0.10), "reproduced")
    assert (value("NEST-3", tables), word("NEST-3", tables)) == (pytest.approx(-0.05), "not reproduced")


def test_time_saved_is_counted_once_for_a_window():
    rows = [
        share(system, seed, time_s, app=app, host_schedule_seconds=seconds)
        for system, times in {
            "ours": (0.9, 0.9),
            "lookahead-anew": (1.0, 1.0),
            "steepest": (0.3, 0.5),
            "steepest-anew": (1.0, 1.0),
        }.items()
        for seed in SEEDS
        for time_s, seconds, apps in ((0.0, times[0], "a"), (1.0, times[1], "abc"))
        for app in apps
    ]
    found = claim("N-17", shared(rows))
    assert found.value == pytest.approx(0.6)
    assert found.note == "of 1e+03 ms"


# --- switches, and who comes and goes


def test_only_going_on_with_another_network_is_a_switch():
    went = ((0.0, 0, 0, 0), (1.0, 0, 0, 0), (2.0, 1, 7, 0), (3.0, 0, 0, 5), (5.0, 1, 7, 0))
    shares = [
        share("ours", 0, time_s, variant=variant, paged_in_bytes=into, paged_out_bytes=out)
        for time_s, variant, into, out in went
    ]
    assert sharing.switches(shared(shares))["time_s"].tolist() == [2.0, 3.0]
    assert value("N-6", shared(shares)) == 0.0
    shares += [
        share("base", 0, time_s, variant=k, paged_in_bytes=9, paged_out_bytes=9) for k, time_s in enumerate((0.0, 1.0))
    ]
    assert value("N-6", shared(shares)) == 0.0  # independent networks drop and load as they must
    wrong = [row | {"paged_in_bytes": 4, "paged_out_bytes": 3} for row in shares]
    note = "1 up and 1 down; by construction, a switch moves only the difference"
    assert claim("N-6", shared(wrong)) == Measured(4 + 3, n=2, note=note)


def visits(system: str, device: str, counts: list[int]) -> list[dict[str, Any]]:
    return [share(system, 0, float(k), device=device, app=app) for k, n in enumerate(counts) for app in "abcdef"[:n]]


def test_arrivals_and_departures_are_counted_once_per_trace(monkeypatch):
    monkeypatch.setattr(sharing, "ENOUGH", 46)
    counts = [6, 5, 4, 3, 2, 6, 5, 4, 6, 5]
    tables = shared([*visits("ours", "d", counts), *visits("fast", "d", [2, 6]), *visits("ours", "e", [6] * 9)])
    found = claim("N-9", tables)
    assert (found.value, found.n) == (pytest.approx(30 - 24.5), 10)
    assert numbers_in(found.note) == [2, 10, 3, 10, 4, 20, 5, 30, 6, 30]
    even = claim("N-10", tables)
    assert (even.value, even.n) == (pytest.approx(100 / 6 - 300 / 46), 46)
    assert numbers_in(even.note) == [6.5, 21.7]


@pytest.mark.parametrize("number", ["N-9", "N-10"])
def test_a_short_run_gives_no_verdict_on_numbers_of_applications(number):
    refused = CLAIMS[number].measure(shared(visits("ours", "d", [6, 5, 4])))
    assert isinstance(refused, Untestable)
    assert numbers_in(refused.reason)[:2] == [15, 100_000]
