"""Paired comparison of two systems, on tables with results that can be computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import results_factory as factory
from tables_factory import Made

import driftlab
from driftlab.errors import DriftlabError, RequestError
from driftlab.platform.results.relations.comparison import compare
from driftlab.platform.results.stats import Estimate

SEEDS = (0, 1, 2)


def row(system: str, seed: int, score: float | None, workload: str = "dance", **more: Any) -> dict[str, Any]:
    cell = f"{system}/{workload}/{more.get('fleet', 'one')}/{seed}"
    usual = {"fleet": "one", "status": "done"}
    return {"cell": cell, "system": system, "seed": seed, "workload": workload, "score_live": score, **usual, **more}


def scored(ours: dict[str, tuple[float, ...]], theirs: dict[str, tuple[float, ...]], **more: Any) -> Made:
    return Made(
        runs=[
            row(system, seed, score, workload, **more)
            for system, found in (("a", ours), ("b", theirs))
            for workload, scores in found.items()
            for seed, score in enumerate(scores)
        ]
    )


def test_differences_are_averaged_by_workload_and_over_all_with_students_t():
    """Differences are 1, 2 and 3 on `dance` (half an interval: 4.3027 / sqrt 3) and 0, 0 and 0 on `run`."""
    found = compare(scored({"dance": (2, 4, 6), "run": (1, 1, 1)}, {"dance": (1, 2, 3), "run": (1, 1, 1)}), "a", "b")
    dance, run, overall = found.rows
    assert dance.difference == pytest.approx((2.0, 2.0 - 2.48414, 2.0 + 2.48414, 3), rel=1e-4)
    assert (dance.place, dance.ours, dance.theirs, dance.verdict) == ("dance", 4.0, 2.0, "inconclusive")
    assert (run.difference, run.verdict) == (Estimate(0.0, 0.0, 0.0, 3), "inconclusive")
    assert overall.difference == pytest.approx((1.0, 1.0 - 1.24207, 1.0 + 1.24207, 3), rel=1e-4)
    assert found.frame[found.frame["workload"] == "dance"]["n"].tolist() == [3]


def test_one_pair_and_no_pair_cannot_tell():
    one = compare(scored({"dance": (1.0,)}, {"dance": (0.0, 0.1)}), "a", "b")
    assert (one.rows[0].difference, one.verdict) == (Estimate(1.0, None, None, 1), "inconclusive")
    none = compare(scored({"dance": (1.0, 1.0)}, {"run": (0.0, 0.1)}), "a", "b")
    assert [(each.place, each.difference, each.verdict) for each in none.rows] == [("overall", None, "inconclusive")]
    assert none.frame["n"].tolist() == [0]


def test_only_cells_that_both_systems_finished_and_measured_are_paired():
    tables = scored({"dance": (0.5, 0.6, 0.7, None)}, {"dance": (0.4, 0.4, 0.4, 0.4, 0.4)})
    tables.change("runs", status=lambda each: "failed" if each["system"] == "a" and each["seed"] == 0 else "done")
    found = compare(tables, "a", "b").rows[-1]
    assert (found.difference.mean, found.difference.n) == (pytest.approx(0.25), 2)


def test_a_device_is_compared_with_itself_in_the_same_fleet():
    tables = Made(
        runs=[row(name, seed, None, fleet=fleet) for name in "ab" for seed in SEEDS for fleet in ("few", "many")],
        shares=[
            {"cell": f"{name}/dance/{fleet}/{seed}", "device": "d", "app": app,
             "accuracy": level + better * (name == "a")}
            for fleet, better in (("few", 0.1), ("many", 0.3))
            for name in "ab"
            for seed in SEEDS
            for app, level in (("x", 0.2 + seed), ("y", 0.5))
            if not (name == "b" and app == "y")  # which therefore has no pair
        ],
    )  # fmt: skip
    by_fleet = compare(tables, "a", "b", "shares.accuracy", by="fleet")
    assert [(each.place, each.difference.mean) for each in by_fleet.rows] == [
        ("few", pytest.approx(0.1)),
        ("many", pytest.approx(0.3)),
        ("overall", pytest.approx(0.2)),
    ]
    assert [each.place for each in compare(tables, "a", "b", "shares.accuracy", by="app").rows] == ["x", "overall"]


@pytest.mark.parametrize(
    "column",
    [
        *("downlink_kbps", "uplink_bytes", "energy_j", "host_seconds", "parameters", "macs"),
        *("frames.latency_ms", "transfers.retransmissions"),
    ],
)
def test_lower_costs_are_better_unless_specified_otherwise(column: str):
    table, _, name = column.rpartition(".")
    place = {"device": "d", "app": "x"}
    costs = [
        row(system, seed, 0.0, **place, **{name: 1.0 + seed / 10 + (system == "b")})
        for system in "ab"
        for seed in SEEDS
    ]
    tables = Made(**{"runs": costs, table or "runs": costs})
    assert (compare(tables, "a", "b", column).ours, compare(tables, "a", "b", column).theirs) == ("a", "b")
    assert compare(tables, "a", "b", column).verdict == "better"
    assert compare(tables, "a", "b", column, less_is_better=False).verdict == "worse"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run, which these tests only read."""
    return factory.make_run(tmp_path_factory.mktemp("run"), snapshots=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"theirs": "no_costum"}, "no_custom"),
        ({"theirs": "one_time"}, "itself"),
        ({"column": "scor"}, "score"),
        ({"column": "student"}, "holds no numbers"),
        ({"column": "frame.score_window"}, "frames"),
        ({"by": "street"}, "workload"),
        ({"by": "app"}, "no applications"),
    ],
)
def test_a_wrong_name_is_refused_with_the_valid_names(folder: Path, asked: dict[str, str], named: str):
    run = driftlab.open_run(folder)
    with pytest.raises(RequestError, match=named) as caught:
        run.compare(**{"ours": "one_time", "theirs": "no_custom", **asked})
    assert isinstance(caught.value, DriftlabError)


@pytest.mark.slow
def test_a_run_compares_and_prints(folder: Path):
    """The made-up stream: one_time gains 0.26 on 100 of 120 s of the scene that stays."""
    run = driftlab.open_run(folder)
    found = run.compare("one_time", "no_custom")
    assert found.rows[1].place == "streets/interview"
    assert found.rows[1].difference.mean == pytest.approx(0.26 * 100 / 120, abs=0.03)
    assert found.rows[1].verdict == "better"
    assert len(repr(found).splitlines()) == 2 + 3 + 1
    assert repr(found).endswith("Settings of one_time: defaults.")
    assert found._repr_html_().count("<tr") == 1 + 3
