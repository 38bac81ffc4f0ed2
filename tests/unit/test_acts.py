"""Sentences of the demo: decided or not, with numbers from the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from experiments_factory import loaded
from tables_factory import Made, numbers_in, run_row, share_row

from driftlab.cli import demo
from driftlab.platform.lab.cells import systems_of
from driftlab.platform.results.report.acts import ACTS, Act, Named, result_of

ACT = Act("Here", Named("new", "ours"), "reaches {} of 100", Named("none", "without"), Named("old", "theirs"), "bytes")
OLD = (0.50, 0.52, 0.54)
each_act = pytest.mark.parametrize("name", ACTS)


def row(system: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    sent = {"new": 30, "old": 40, "none": 0}[system]
    costs = {"uplink_bytes": sent, "downlink_bytes": 2 * sent, "energy_j": 10.0 * sent}
    return run_row(system, seed, score_live=score, **costs, **more)


def ran(new: Sequence[float], old: Sequence[float] = OLD, **more: Any) -> Made:
    scores = {"new": new, "old": old, "none": [0.25] * len(old)}
    return Made(runs=[row(name, seed, one, **more) for name, of in scores.items() for seed, one in enumerate(of)])


def test_a_decided_sentence_has_score_difference_interval_and_cost():
    found = result_of(ACT, ran([0.60, 0.63, 0.66]))
    assert (found.verdict, found.cost_share) == ("better", 0.75)
    assert found.sentence.startswith("Here, ours (new) reaches 63 of 100 (25 without): 11.0 ± 2.5 points more than ")
    assert found.sentence.endswith("theirs (old), for 75 % of its bytes.")


def test_a_method_that_is_worse_gets_fewer_points():
    found = result_of(ACT, ran([0.40, 0.41, 0.42]))
    assert found.verdict == "worse"
    assert "11.0 ± 2.5 points fewer than theirs" in found.sentence


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_difference_with_zero_in_its_interval_or_of_one_seed_is_not_decided(seeds: int):
    found = result_of(ACT, ran([0.60, 0.50, 0.55][:seeds], OLD[:seeds]))
    assert found.verdict == "inconclusive"
    assert "no difference that this run can show (+" in found.sentence
    assert not {"more", "fewer"} & {*found.sentence.split()}


@pytest.mark.parametrize("gone", ["new", "old"])
def test_without_a_system_there_is_no_result(gone: str):
    tables = ran([0.60, 0.63, 0.66])
    tables.drop("runs", lambda of: of["system"] == gone)
    found = result_of(ACT, tables)
    assert (found.verdict, found.difference) == ("inconclusive", None)
    assert "no result" in found.sentence
    assert not numbers_in(found.sentence)


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_no_table_and_failed_cells_give_no_result(act: Act):
    assert "no result" in result_of(act, Made()).sentence
    failed = {"status": "failed", "score_live": None}
    rows = [run_row(one.system, 0) | failed for one in (act.ours, act.baseline, act.unadapted)]
    assert "no result" in result_of(act, Made(runs=rows)).sentence


def test_only_seeds_that_both_completed_are_compared():
    tables = ran([0.60, 0.63, 0.66])
    tables.drop("runs", lambda of: of["system"] == "old" and of["seed"] == 2)
    found = result_of(ACT, tables)
    assert found.difference is not None
    assert (found.difference.n, found.score) == (2, pytest.approx(0.615))


def test_a_free_baseline_gives_no_share_and_twice_the_cost_is_a_factor():
    tables = ran([0.60, 0.63, 0.66])
    tables.change("runs", uplink_bytes=lambda of: 90 if of["system"] == "new" else 0, downlink_bytes=lambda of: 0)
    assert result_of(ACT, tables).sentence.endswith("theirs (old).")
    tables.change("runs", downlink_bytes=lambda of: 10)
    assert result_of(ACT, tables).sentence.endswith(", for 10.0 times its bytes.")


def test_late_and_skipped_frames_count_as_wrong_where_time_counts():
    """A frame that is right after 120 ms counts for a goal of 200 ms and not for one of 100 ms."""
    in_time = Act(**{**vars(ACT), "in_time": True})
    tables = ran([1.0, 1.0, 1.0])
    cells = [of["cell"] for of in tables.frame("runs").to_dict("records")]
    frames = [(80.0, 1.0), (120.0, 1.0), (50.0, 0.0), (None, 1.0)]
    place = {"device": "d", "app": "a"}
    made = Made(
        runs=tables.frame("runs").to_dict("records"),
        shares=[{"cell": cell, **share_row(latency_goal_ms=200.0 if "new" in cell else 100.0)} for cell in cells],
        frames=[{"cell": cell, **place, "processed": ms is not None, "latency_ms": ms, "score_frame": score}
                for cell in cells for ms, score in frames],
    )  # fmt: skip
    found = result_of(in_time, made)
    assert (found.score, found.difference and found.difference.mean) == (0.5, 0.25)


@each_act
def test_each_act_has_an_experiment_and_no_bound_is_a_baseline(name: str):
    act, spec = ACTS[name], loaded(f"demo-{name}")
    systems = {system.name: system for system in systems_of(spec)}
    assert {act.ours.system, act.baseline.system, act.unadapted.system} <= systems.keys()
    assert not systems[act.ours.system].bound
    assert not systems[act.baseline.system].bound
    assert systems[act.unadapted.system].bound == "no_adaptation"
    assert len(spec.seeds) >= 5
    goals = [app.latency_goal_s for workload in spec.workloads for app in spec.apps_of(workload)]
    assert act.in_time == all(goal is not None for goal in goals)


def test_the_command_runs_every_act():
    assert (*ACTS,) == demo.ACTS
