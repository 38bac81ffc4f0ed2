"""The ledger of evidence: lines are only added, and a line holds digests of its code and experiment."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ledger_factory as factory
import pandas as pd
import pytest
import results_factory
from command_factory import run_command

from driftlab.errors import DataError, RequestError
from driftlab.platform.lab import evidence, paths
from driftlab.platform.lab.cells import resolved
from driftlab.platform.lab.read import load
from driftlab.platform.results.claims import ledger
from driftlab.platform.results.claims.base import every_claim, judge
from driftlab.platform.results.claims.ledger import Digests, append, newest, read_ledger, stale
from driftlab.platform.results.claims.statistics import STATISTICS
from driftlab.platform.results.tables.read import open_run

EXPERIMENT = "platform/lab/experiments/ams-table1.yaml"
FILES = {
    "platform/sim/runner.py": "from driftlab.platform.core import (\n    a,\n)\nKIND = 'driftlab.platform.sim.b:B'",
    "platform/core/__init__.py": "",
    "platform/core/a.py": "x = 1",
    "platform/core/other.py": "x = 1",
    "platform/streaming/ams.py": "built_as = 'one_time'",
    "platform/streaming/one_time.py": "from driftlab.platform.streaming.rates import x",
    "platform/streaming/rates.py": "x = 1",
    "platform/streaming/just_in_time.py": "x = 1",
    "platform/streaming/local.py": "x = 1",
    "platform/results/relations/scores.py": "from driftlab.platform.results.relations.base import x",
    "platform/results/relations/base.py": "x = 1",
    "platform/results/relations/rates.py": "y = 1",
    "platform/lab/sets.yaml": "workloads: {all: [{name: streets/dance}], none: []}",
    "platform/lab/experiments/other.yaml": "{seeds: [0], sizes: {full: {seeds: [0, 1]}, small: {seeds: [0]}}}",
    EXPERIMENT: "{extends: other, size: full, window_s: 5, workloads: [{set: all}], systems: [ams]}",
}
LINE = factory.line("ONCE-1", 0.1)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def recorded(package: Path) -> dict[str, Any]:
    now = Digests(package)
    spec = now.spec("ams-table1", "full")
    code = now.cells("ams-table1", "full")
    return {**LINE, "code_digest": code, "measure_digest": now.measure("scores.received"), "spec_digest": spec}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("platform/core/a.py", "x = 2", "other code since"),
        ("platform/core/__init__.py", "x = 1", "other code since"),
        ("platform/core/other.py", "x = 2", ""),
        ("platform/sim/b.py", "", "other code since"),
        ("platform/streaming/ams.py", "built_as = 'just_in_time'", "other code since"),
        ("platform/streaming/local.py", "x = 2", "other code since"),
        ("platform/streaming/rates.py", "x = 2", "other code since"),
        ("platform/streaming/just_in_time.py", "x = 2", ""),
        ("platform/results/relations/scores.py", "y = 2", "other measures since"),
        ("platform/results/relations/base.py", "x = 2", "other measures since"),
        ("platform/results/relations/rates.py", "y = 2", ""),
        ("platform/results/tables/a.py", "x = 1", "other measures since"),
        (
            EXPERIMENT,
            "{extends: other, size: full, window_s: 6, workloads: [{set: all}], systems: [ams]}",
            "other experiment since",
        ),
        ("platform/lab/experiments/other.yaml", "{sizes: {full: {seeds: [0, 2]}}}", "other experiment since"),
        ("platform/lab/sets.yaml", "workloads: {all: []}", "other experiment since"),
        ("platform/lab/sets.yaml", "workloads: {all: [{name: streets/dance}], none: [1]}", ""),
        (EXPERIMENT, f"# a comment\n{FILES[EXPERIMENT].replace('full', 'small, summary: said')}", ""),
        ("platform/lab/experiments/other.yaml", "{seeds: [0], sizes: {full: {seeds: [0, 1]}}}", ""),
        ("platform/core/README.md", "text", ""),
    ],
)
def test_a_line_is_stale_once_its_code_its_measures_or_its_experiment_changed(package, name, text, reason):
    line = recorded(package)
    assert stale(line, every_claim()["ONCE-1"], Digests(package)) == ""
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_text(text)
    assert stale(line, every_claim()["ONCE-1"], Digests(package)) == reason


def test_a_line_is_stale_if_the_claim_changed_or_digests_are_missing():
    claim = every_claim()["ONCE-1"]
    assert stale(LINE, claim, factory.TODAY) == ""
    assert stale(LINE, replace(claim, sentence="it helps"), factory.TODAY) == "other claim since"
    assert stale(LINE, replace(claim, rule="ge"), factory.TODAY) == "other claim since"
    for digest in ("code_digest", "measure_digest", "spec_digest"):
        assert stale({**LINE, digest: None}, claim, factory.TODAY) == "recorded without digests"


@pytest.mark.slow
def test_the_current_code_has_a_separate_digest():
    now = Digests()
    assert now.cells("ams-table1", "small") != now.cells("many-apps", None)
    assert (
        len(
            {
                now.cells("ams-table1", None),
                now.measure("scores.received"),
                now.measure("rates.slow_from"),
                now.spec("ams-table1", "small"),
                now.spec("ams-table1", "full"),
            }
        )
        == 5
    )
    assert now.spec("no-such-experiment", None) is None


def test_lines_are_appended_and_the_last_one_counts(tmp_path):
    file = factory.ledger(tmp_path)
    other = {**LINE, "value": 0.2}
    assert append(file, [LINE, {**LINE, "size": None}]) == 2
    before = file.read_bytes()
    assert append(file, [LINE]) == 0  # as it stands there
    assert append(file, [other]) == 1
    assert file.read_bytes().startswith(before)
    assert read_ledger(file) == [LINE, {**LINE, "size": None}, other]
    assert list(newest(read_ledger(file)).values()) == [{**LINE, "size": None}, other]
    assert append(file, [LINE]) == 1


def test_a_last_line_that_was_torn_is_left_out_and_removed_by_the_next_writer(tmp_path):
    file = factory.ledger(tmp_path)
    append(file, [LINE])
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    assert read_ledger(file) == [LINE]
    other = {**LINE, "claim": "ONCE-2"}
    append(file, [other])
    assert file.read_bytes().startswith(whole)
    assert read_ledger(file) == [LINE, other]


def test_a_last_line_without_its_end_stays(tmp_path):
    file = factory.ledger(tmp_path)
    append(file, [LINE])
    file.write_bytes(file.read_bytes().rstrip())
    append(file, [{**LINE, "claim": "ONCE-2"}])
    assert [line["claim"] for line in read_ledger(file)] == ["ONCE-1", "ONCE-2"]


def test_a_damaged_line_and_a_missing_ledger_are_named(tmp_path):
    file = factory.ledger(tmp_path)
    append(file, [LINE])
    file.write_bytes(b"{}\n" + file.read_bytes())
    with pytest.raises(DataError, match="Line 1 of"):
        read_ledger(file)
    with pytest.raises(RequestError, match="There is no ledger"):
        append(tmp_path / "ledger.jsonl", [LINE])


def test_a_writer_holds_a_lock_from_reading_to_writing(tmp_path, monkeypatch):
    file, parse = factory.ledger(tmp_path), ledger._parsed

    def parsed(*args: Any) -> Any:
        with file.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return parse(*args)

    monkeypatch.setattr(ledger, "_parsed", parsed)
    assert append(file, [LINE]) == 1
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_lines_of_a_writer_that_began_later_stay(tmp_path, monkeypatch):
    file, lock = factory.ledger(tmp_path), fcntl.flock
    other = {**LINE, "claim": "ONCE-2"}

    def waited(place: Any, how: int) -> None:
        file.write_text(json.dumps(other) + "\n")  # which the other one writes before it gives up its lock
        lock(place, how)

    monkeypatch.setattr(fcntl, "flock", waited)
    append(file, [LINE])
    assert read_ledger(file) == [other, LINE]


def test_values_of_seeds_are_kept_where_they_were_averaged():
    index = pd.MultiIndex.from_product([["a", "b"], [0, 1]], names=["workload", "seed"])
    rows = pd.DataFrame({"value": [1.0, 2.0, 4.0, 8.0]}, index)
    assert STATISTICS["value"](rows).by_seed == {0: 2.5, 1: 5.0}
    assert STATISTICS["ratio"](rows).by_seed == pytest.approx({0: 2.0, 1: 4.0})
    assert STATISTICS["lowest"](rows, chosen_after=True).by_seed == {0: 1.0, 1: 2.0}
    twice = pd.concat({"one": rows, "two": rows}, names=["fleet"])
    assert STATISTICS["lowest"](twice).by_seed is None


@pytest.mark.slow
def test_a_line_holds_digests_and_host_of_its_run(tmp_path, monkeypatch):
    file = factory.ledger(tmp_path)
    folder = results_factory.make_run(tmp_path / "run", systems=("no_custom", "one_time"), snapshots=False)
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({**info, "code_digest": "all", "cells_digest": "abc", "instructions": "avx2"})
    )
    monkeypatch.setattr(ledger, "LEDGER", file)
    monkeypatch.setattr(evidence, "check_evidence", lambda folder: None)
    result = run_command(["claims", str(folder), "--json", "--record"])
    measured = {claim["id"]: claim for claim in json.loads(result.stdout)["claims"] if claim["ours"] is not None}
    lines = {line["claim"]: line for line in read_ledger(file)}
    assert lines.keys() == measured.keys() != set()
    for name, line in lines.items():
        claim = every_claim()[name]
        assert (line["value"], line["verdict"], line["words"]) == (
            *(measured[name][key] for key in ("ours", "verdict")),
            claim.sentence,
        )
        assert (line["experiment"], line["seeds"], line["code_digest"]) == ("demo", [0, 1, 2], "abc")
        assert line["machine"].keys() == {"architecture", "processor", "instructions", "torch"}
        if line["per_seed"] and claim.unit == "mIoU difference":
            assert sum(line["per_seed"]) / 3 == pytest.approx(line["value"])
    assert any(line["per_seed"] for line in lines.values())
    assert sum(open_run(folder).frame("runs")["host_seconds"]) == pytest.approx(line["seconds"], abs=0.1)


def test_only_a_finished_run_of_an_experiment_as_it_stands_is_evidence(tmp_path):
    plain, changed = load("quick"), load("quick", ["window_s=3"])
    folder = paths.new_run(tmp_path / "plain", resolved(plain))
    with pytest.raises(RequestError, match=r"lacks \d+ cells. Finish it"):
        evidence.check_evidence(folder)
    with pytest.raises(RequestError, match=r"differs from experiment 'quick' .*window_s"):
        evidence.check_evidence(paths.new_run(tmp_path / "changed", resolved(changed)))
    with pytest.raises(RequestError, match="clock: virtual vs wall"):
        evidence.check_evidence(paths.new_run(tmp_path / "wall", {**resolved(plain), "clock": "wall"}))
    own = paths.new_run(tmp_path / "own", {**resolved(plain), "name": "my-own"})
    with pytest.raises(RequestError, match="my-own"):
        evidence.check_evidence(own)


def test_a_run_that_other_code_continues_has_no_digest_of_code(tmp_path):
    folder = paths.new_run(tmp_path, {"name": "test"})
    paths.keep_info(folder, lambda: {"code_digest": "a", "python": "3"})
    paths.clear_other_code(folder, "a")
    assert json.loads((folder / "run.json").read_text()) == {"code_digest": "a", "python": "3"}
    paths.clear_other_code(folder, "b")
    paths.clear_other_code(folder, "a")
    assert json.loads((folder / "run.json").read_text()) == {"code_digest": None, "python": "3"}


@pytest.mark.slow
def test_a_claim_that_was_not_measured_has_no_line(tmp_path):
    run = open_run(results_factory.make_run(tmp_path / "run", seeds=(0, 1), snapshots=False))
    claim = next(claim for claim in every_claim().values() if claim.not_testable)
    assert ledger.lines_of(run, [judge(claim, claim.measure(None))], factory.TODAY) == []
