"""Failures in a report: of members, and of parts of the report."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import results_factory as factory
from command_factory import run_command
from tables_factory import Made, run_row

from driftlab.platform.core.records import LEARNING_FAILED, NO_END, PREDICTION_FAILED
from driftlab.platform.results.claims import base as claims
from driftlab.platform.results.isolation import FAILED
from driftlab.platform.results.relations.failures import member_failures, symptoms
from driftlab.platform.results.report import page
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.report.summary import table
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import files_of
from driftlab.platform.results.tables.schema import TABLES

BROKEN = """
class Broken:
    def adapt(self, model, frames):
        raise ValueError("no such layer")
"""
RUN = """
name: broken
bounds: false
systems: [no_custom, {name: broken, adaptation: {name: "broken.py:Broken", stream_batch: 8}}]
student: {network: tiny_classifier, pretrain_steps: 1}
workloads: [{name: signs/town, duration_s: 5, fps: 4, height: 24, width: 24}]
"""
FILLED = ("runs", "frames", "transfers", "updates", "devices", "snapshots")  # of the run that loses a table


def tables(batches: list[tuple[str, str | None]], rounds: list[tuple[str, str | None, float | None]] = ()) -> Made:
    """Return tables of systems with a row per training batch or round, each with its reason."""
    names = dict.fromkeys(name for name, *_ in [*batches, *rounds])
    runs = [run_row(name) for name in names]
    place = {run["system"]: {"cell": run["cell"], "device": "d", "app": "a"} for run in runs}
    return Made(
        {"systems": list(names)},
        runs=runs,
        frames=[{**place[name], "app": app} for name in names for app in "ab"],
        adaptations=[{**place[name], "skipped": why} for name, why in batches],
        updates=[{**place[name], "reason": why, "train_start_s": start_s} for name, why, start_s in rounds],
    )


def test_failures_are_counted_among_the_steps_of_a_system():
    fault = f"{LEARNING_FAILED}: ValueError: no such layer"
    found = member_failures(
        tables(
            [("ema", fault), ("ema", "contrast is low"), ("ema", None), ("bad", fault), ("bad", "no frames")],
            [("slow", f"{NO_END} within 9 s", 1.0), ("slow", "stored", None), ("fine", None, 1.0)],
        )
    )
    assert [(one.text, one.every) for one in found] == [
        ("bad: 1 of 2 training batches failed: ValueError: no such layer", True),
        ("ema: 1 of 3 training batches failed: ValueError: no such layer", False),
        (f"slow: 1 of 1 training phase failed: {NO_END} within 9 s", True),
    ]


def test_failed_predictions_are_counted_by_stream():
    found = member_failures(tables([("ema", None), ("ema", f"{PREDICTION_FAILED}: KeyError: 'logits'")]))
    assert [(one.text, one.every) for one in found] == [
        ("ema: predictions failed in 1 of 2 streams: KeyError: 'logits'", False)
    ]
    assert member_failures(tables([("ema", None), ("ema", "no frames")])) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_a_run_whose_member_always_failed_says_so_and_exits_with_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "run.yaml").write_text(RUN)
    done = run_command(["run", "run.yaml", "--backend", "inline", "--out", "run"])
    line = "broken: 2 of 2 training batches failed: ValueError: no such layer"
    assert done.exit_code == 1
    assert f"FAILED {line}" in done.output
    assert "health  broken: no weights changed in 1 of 1 cells." in done.output
    members = set(open_run(tmp_path / "run").table("systems")["member"].to_pylist())
    assert "broken.py:Broken" in members  # without its folder
    assert line in (tmp_path / "run/report.md").read_text(encoding="utf-8").split("## ")[1]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return factory.make_run(tmp_path_factory.mktemp("complete"), workloads=("streets/interview",), seeds=(0, 1))


@pytest.mark.slow
def test_a_part_that_raises_an_exception_is_one_line_of_the_report(complete: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise KeyError(25.0)

    monkeypatch.setattr(page, "FIGURES", (replace(page.FIGURES[0], show=broken), *page.FIGURES[1:3]))
    monkeypatch.setattr(table, "KINDS", (broken, *table.KINDS))
    monkeypatch.setattr(page, "make_clip", broken)
    monkeypatch.setattr(claims, "relation", lambda name: broken)
    text = write_report(complete).with_suffix(".md").read_text(encoding="utf-8")
    health = text.split("## ")[1]
    for part in (f"Figure '{page.FIGURES[0].title}'", "The clip", "Claim AMS-1", "The table of test_results_failures"):
        assert f"{part} {FAILED}: KeyError: 25.0" in health
    assert "## Tables" in text and "## How to repeat this run" in text


@pytest.mark.slow
def test_a_complete_run_has_no_such_line(complete: Path):
    assert page.compose(open_run(complete)).health == []


def with_systems(*rows: dict[str, object], **tables: list[dict[str, object]]) -> list[str]:
    spec = {"systems": ["no_custom", "tent", "ams"]}
    return symptoms(Made(spec, runs=list(rows), **tables))


def ran(system: str, seed: int = 0, **more: object) -> dict[str, object]:
    usual = {"frames": 4, "updates": 1, "duration_s": 60.0, "score_live": 0.1 * seed, "grace_s": 0.1}
    return run_row(system, seed, **{**usual, **more})


def test_a_method_that_never_changed_its_network_is_named_with_its_session():
    (text,) = with_systems(ran("ams"), ran("ams", 1, updates=0))
    assert text.startswith("ams: no weights changed in 1 of 2 cells. Their sessions (60 s)")
    assert with_systems(ran("ams"), ran("no_custom", updates=0, score_live=0.9, bound="no_adaptation")) == []


def test_a_batch_on_the_stream_is_an_action_unless_it_was_skipped():
    row = ran("tent", updates=0)
    batch = {"cell": row["cell"], "skipped": None}
    assert with_systems(row, adaptations=[batch]) == []
    assert len(with_systems(row, adaptations=[batch | {"skipped": "too few frames"}])) == 1


def test_predictions_that_are_mostly_late_are_named_with_their_share():
    row = ran("ams")
    frames = [{"cell": row["cell"], "processed": True, "latency_ms": latency_ms} for latency_ms in (50, 101, 500, 500)]
    (text,) = with_systems(row, frames=frames)
    assert text.startswith("ams: 75 % of the frames")
    assert "batches" not in text
    assert with_systems(row, frames=frames[:2]) == []


def test_a_late_method_that_predicts_in_batches_should_reduce_them():
    row = ran("tent")
    frames = [{"cell": row["cell"], "processed": True, "latency_ms": latency_ms} for latency_ms in (500, 500)]
    (text,) = with_systems(row, frames=frames)
    assert "tent: 100 % of the frames" in text
    assert "in batches of 32 frames" in text
    assert "set a smaller stream_batch" in text


def test_systems_that_tie_in_every_cell_are_named_as_a_pair():
    rows = [ran(name, seed) for name in ("ams", "tent") for seed in (0, 1)]
    (text,) = with_systems(*rows)
    assert text.startswith("ams and tent have equal live scores in every cell")
    rows[-1]["score_live"] = 0.7
    assert with_systems(*rows) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    systems, workloads = ("no_custom", "one_time"), ("streets/interview",)
    folder = tmp_path_factory.mktemp("whole")
    return factory.make_run(folder, systems=systems, workloads=workloads, seeds=(0,), duration_s=20.0)


def test_the_tables_with_rows_are_known(whole: Path):
    run = open_run(whole)
    assert [name for name in TABLES if len(run.table(name))] == list(FILLED)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch, few_claims: None) -> None:
    """Write reports without pictures and with few claims, as these tests look at neither."""
    monkeypatch.setattr(page, "panel", lambda *_: "<svg></svg>")
    monkeypatch.setattr(page, "make_clip", lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "name, damage",
    [*((name, "missing") for name in TABLES), *((name, "empty") for name in FILLED), ("frames", "unreadable")],
)
def test_a_report_without_one_table_opens_and_names_it(whole: Path, tmp_path: Path, name: str, damage: str):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for file in files_of(run / "tables", name):
        if damage == "missing":
            file.unlink()
        elif damage == "empty":
            pq.write_table(pq.read_table(file).slice(0, 0), file)
        else:
            file.write_bytes(b"PAR1")
    text = write_report(run).with_suffix(".md").read_text(encoding="utf-8")
    if name == "runs":
        assert "No cell of this run is complete yet" in text
    elif damage == "empty":
        empty = text.split("| tables without rows | ")[1].split("|")[0]
        assert name in [word.strip() for word in empty.split(",")]
        lost = "Tables that should have rows are empty: "
        assert (name in text.partition(lost)[2].split(".")[0].split(", ")) == (name in ("frames", "devices"))
    else:
        assert f"The table '{name}' is missing from this report: " in text.split("## ")[1]
