"""Tables of papers: values of cells, and signs that are the same, opposite, undecided or not compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ledger_factory
import pytest
import recorded_factory
import results_factory
from claims_factory import SEEDS, WOBBLE, ask_of, part, run_row, scored
from command_factory import run_command
from tables_factory import Made

from driftlab.errors import RequestError
from driftlab.platform.core.documents import read_yaml
from driftlab.platform.lab.read import load
from driftlab.platform.results import isolation
from driftlab.platform.results.claims import cells, ledger, pages
from driftlab.platform.results.claims.base import NO_RUN, Verdict
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.report.paper_tables import grids_of
from driftlab.platform.results.tables.read import open_run

TABLES = cells.every_table()


def found(name: str, tables: Made) -> dict[str, Verdict]:
    return {verdict.claim.sentence: verdict for verdict in cells.compare(cells.table_of(name), tables)}


def street(**scores: float) -> Made:
    return scored(**{system: {"running": score} for system, score in scores.items()})


EVERY = [cell for table in TABLES.values() for cell in table.cells]


@pytest.mark.slow
def test_every_cell_names_a_run_that_exists():
    for experiment, size in {cell.run for cell in EVERY if cell.run[1]} | {(cell.experiment, "") for cell in EVERY}:
        load(experiment, overrides=[f"size={size}"] if size else [])


def test_every_cell_states_what_it_takes_with_the_time_of_a_run():
    assert all(cell.takes for cell in EVERY)
    assert [
        cell.id for cell in EVERY if cell.run[1] and not re.search(r"(minutes?|hours?) on two cores", cell.takes)
    ] == []


KEYS = {
    *("id", "title", "source", "name", "columns", "rows", "paper", "unit", "experiment", "takes", "claim", "claims"),
    *("relation", "system", "where", "at", "take", "minus", "against", "neutral", "statistic"),
    *("by_construction", "not_testable"),
    "benchmarks",
}


def test_tables_hold_known_keys_only():
    """A comma in a text without quotes begins another key."""
    tables = [entry for file in cells.PAPERS.glob("*.yaml") for entry in read_yaml(file.read_text(encoding="utf-8"))]
    parts = [one for table in tables for key in ("rows", "columns") for one in table[key] if not isinstance(one, str)]
    assert {key for one in (*tables, *parts) for key in one} == KEYS


def test_a_cell_has_the_value_of_its_row_and_column():
    values = {cell.id: (cell.paper, cell.unit) for cell in TABLES["ams-table1"].cells}
    assert len(values) == 60
    assert values["ams-table1: Outdoor Scenes, mIoU, AMS"] == (74.26, "%")
    assert values["ams-table1: LVS, uplink, Remote+Tracking"] == (1865, "kbit/s")
    beyond = {cell.id: cell.beyond for cell in TABLES["ams-table1"].cells}
    assert beyond["ams-table1: A2D2, mIoU, One-Time"] == 62.05
    assert beyond["ams-table1: A2D2, downlink, One-Time"] == 203


def test_keys_of_a_row_come_before_those_of_its_column_and_of_the_table():
    takes = {cell.id: cell.takes for cell in TABLES["ams-table1"].cells}
    assert "size=long" in takes["ams-table1: Outdoor Scenes, mIoU, AMS"]
    assert "size=city" in takes["ams-table1: Outdoor Scenes, mIoU, Just-In-Time"]
    assert "videos" in takes["ams-table1: LVS, mIoU, Just-In-Time"]


def test_a_sign_is_that_of_the_difference_from_the_reference():
    """One-Time gains on Running in the paper; without a gain the sign is undecided."""
    words = {}
    for score in (0.65, 0.5, 0.45):
        tables = street(no_custom=0.5, one_time=score)
        tables.change("runs", score=lambda row: row["score"] + WOBBLE[row["seed"]] * (row["system"] == "one_time"))
        words[score] = found("ams-table2", tables)["Running, One-Time"]
    assert [words[score].result for score in words] == ["same sign", "sign undecided", "opposite sign"]
    assert words[0.65].measured.value == pytest.approx(65.0, abs=0.1)
    assert found("ams-table2", street(no_custom=0.5))["Running, No Customization"].result == "information"


def test_a_single_seed_shows_its_value_and_decides_no_sign():
    runs = [run_row(name, 0, "running", score) for name, score in (("no_custom", 0.5), ("ams", 0.7))]
    cell = found("ams-table2", Made(runs=runs))["Running, AMS"]
    assert (cell.measured.value, cell.measured.low, cell.result) == (pytest.approx(70), None, "sign undecided")


def test_a_cell_of_another_street_or_method_is_not_run_and_names_the_run():
    cell = found("ams-table2", street(no_custom=0.5, ams=0.6))["Interview, AMS"]
    assert (cell.result, cell.measured) == ("not run", None)
    assert "size=city" in cell.note
    (row,) = (row for row in cells.as_rows([cell]))
    assert row[2] == "not run"
    assert row[4] == cell.note


def test_data_sets_are_distinguished_by_the_names_of_their_videos():
    rows = [run_row("ams", seed, name, 0.5 + WOBBLE[seed]) for seed in SEEDS for name in ("a2d2-drive", "running")]
    rows += [run_row("ams", seed, "lvs-jogging", 0.9 + WOBBLE[seed]) for seed in SEEDS]
    measured = found("ams-table1", Made(runs=rows))
    values = [measured[f"{name}, mIoU, AMS"].measured for name in ("Outdoor Scenes", "A2D2", "LVS", "Cityscapes")]
    assert [one and one.value for one in values] == [pytest.approx(50), pytest.approx(50), pytest.approx(90), None]


def test_differences_are_compared_with_zero_and_kinds_are_named_by_parameters():
    parts = [
        part("everything", "ams", streaming={}, adaptation={"strategy": "full", "fraction": 1.0}),
        part("guided", "ams", streaming={}, adaptation={"fraction": 0.01}),
    ]
    runs = [
        run_row(name, seed, score=score + index * WOBBLE[seed], downlink_kbps=rate)
        for index, (name, score, rate) in enumerate((("everything", 0.6, 30.0), ("guided", 0.55, 3.0)))
        for seed in SEEDS
    ]
    measured = found("ams-table3", Made({"systems": parts}, runs=runs))
    assert measured["Gradient-Guided, 1 %"].measured.value == pytest.approx(-5.0)
    assert measured["Gradient-Guided, 1 %"].result == "same sign"
    assert measured["Bandwidth, all weights"].measured.value == pytest.approx(30)
    assert measured["Gradient-Guided, 5 %"].result == "not run"


def test_a_cell_of_a_claim_has_its_statistic_and_one_definition():
    cell = next(cell for cell in TABLES["ams-fig4"].cells if cell.claim == "AMS-5")
    claim = cells.every_claim()["AMS-5"]
    assert (cell.of, cell.statistic, cell.unit) == (claim.of, claim.statistic, claim.unit)
    assert (cell.paper, cell.beyond) == (15.7, 1)


def test_every_value_of_a_paper_is_a_cell():
    """A cell is neither lost nor made twice where rows and columns meet."""
    for file in cells.PAPERS.glob("*.yaml"):
        for entry in read_yaml(file.read_text(encoding="utf-8")):
            given = sum(value is not None for row in entry["rows"] for value in row["paper"])
            assert all(len(row["paper"]) == len(entry["columns"]) for row in entry["rows"])
            ids = [cell.id for cell in TABLES[entry["id"]].cells]
            assert len(set(ids)) == len(ids) == given


def test_cells_are_recorded_and_written_into_pages(tmp_path):
    tables = street(no_custom=0.5, ams=0.7)
    tables.run.spec["name"] = "ams-table2"
    ((_, found_cells),) = cells.compared_with(tables)
    measured = [one for one in found_cells if one.measured]
    assert {one.claim.sentence for one in measured} == {"Running, No Customization", "Running, AMS"}
    digests = dict.fromkeys(("code_digest", "measure_digest", "spec_digest"))
    run = {"experiment": "ams-table2", "size": "small", **digests}
    lines = [ledger.fields_of(one, SEEDS) | run for one in measured]
    (tmp_path / "docs").mkdir()
    ledger.append(ledger_factory.ledger(tmp_path), lines)
    mark = "<!-- paper Table ams-table2 -->\n{}<!-- end of paper -->\n"
    (tmp_path / "docs/page.md").write_text(mark.format(""), encoding="utf-8")
    pages.main(tmp_path / "docs")
    text = Path(tmp_path / "docs/page.md").read_text(encoding="utf-8")
    assert "| Running, AMS | 69.55 % | 70 % |" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| Running, AMS"))
    assert "same sign | ams-table2, small, *stale*" in row
    assert text.count("not run") == 33


def test_the_run_that_a_cell_names_comes_before_newer_ones():
    cell = next(cell for cell in EVERY if cell.id == "ams-table2: Running, AMS")
    assert (cell.experiment, cell.run) == ("ams-table2", ("ams-table1", "city"))
    runs = [("ams-table1", "city"), ("ams-table1", "small"), ("ams-table2", "small"), ("ams-table1", "lean")]
    lines = [{"claim": cell.id, "experiment": name, "size": size} for name, size in runs]
    assert cell.preferred(lines) == lines[0]
    assert cell.preferred(lines[1:]) == lines[2]
    assert cell.preferred([lines[1], lines[3]]) == lines[3]
    assert cell.preferred([{**lines[0], "claim": "another"}]) is None


def test_a_run_is_compared_with_the_tables_that_name_it():
    tables = street(no_custom=0.5, ams=0.7)
    tables.run.spec["name"] = "ams-table1"
    assert {table.id for table, _ in cells.compared_with(tables)} == {"ams-table1", "ams-table2"}


def test_a_report_has_the_tables_that_its_experiment_repeats():
    tables = street(no_custom=0.5, ams=0.7)
    assert grids_of(tables) == []
    tables.run.spec["name"] = "ams-table2"
    (grid,) = grids_of(tables)
    assert len(grid.rows) == 35
    assert [cell.text for cell in grid.rows["Running, AMS"]][::3] == ["69.55 %", "same sign"]
    assert {len(cells) for cells in grid.rows.values()} == {len(grid.columns)}


def test_too_few_seeds_are_the_reason_where_a_value_needs_several():
    (cell, *_) = (cell for cell in TABLES["ams-fig4"].cells if cell.claim == "AMS-20")
    one = Made(runs=[run_row(name, 0, score=score) for name, score in (("ams", 0.6), ("just_in_time", 0.5))])
    (verdict,) = (each for each in cells.compare(TABLES["ams-fig4"], one) if each.claim.sentence == cell.sentence)
    assert verdict.result == "not run"
    assert verdict.note.startswith("one seed has no interval")


def test_a_cell_without_a_line_takes_that_of_its_claim():
    cell = next(cell for cell in TABLES["ams-fig4"].cells if cell.claim == "AMS-5")
    line = ledger_factory.line("AMS-5", 3.0, low=1.5, high=4.0)
    assert cells.verdict_of(cell, line).result == "same sign"
    assert cells.verdict_of(cell, {**line, "low": 0.5}).result == "sign undecided"
    assert cells.verdict_of(replace(cell, beyond=None), line).result == "information"
    assert cells.verdict_of(cell, None).result == "not run"


@pytest.mark.slow
def test_the_command_prints_a_table_of_a_run(tmp_path):
    run = results_factory.make_run(tmp_path, workloads=("streets/interview",), snapshots=False)
    result = run_command(["report", str(run), "--paper", "ams-table2", "--json"])
    listed = {cell["claim"]: cell for cell in json.loads(result.stdout)["cells"]}
    assert listed["Interview, One-Time"]["verdict"] == "same sign"
    assert listed["Running, AMS"]["verdict"] == "not run"
    text = run_command(["report", str(run), "--paper", "ams-table2"]).output
    assert "Interview, One-Time" in text
    assert NO_RUN not in text
    wrong = run_command(["report", str(run), "--paper", "ams-table9"])
    assert isinstance(wrong.exception, RequestError)
    assert "ams-table2" in str(wrong.exception)
    assert open_run(run).spec["name"]


class TestRelations:
    """Relations of cells on recorded tables, and on tables by hand."""

    def of_recorded(self, name: str, relation: str, *systems: str, **where: Any) -> float:
        found = ask_of(recorded_factory.tables_of(name), "value", f"cells.{relation}", *systems, **where)
        assert isinstance(found, Measured)
        return found.value

    def test_memory_and_switches_of_an_application(self):
        """Nested networks of 10 to 40 bytes share the largest; six switches up load 100 bytes."""
        nested, alone = (self.of_recorded("N-2", "memory", kind, app="a") for kind in ("nested", "independent"))
        assert nested == 40e-6
        assert alone == 100e-6
        together = self.of_recorded("N-2", "memory", "nested", app="*")
        assert together == nested + self.of_recorded("N-2", "memory", "nested", app="b")
        for direction, upgrade, wanted in (
            ("loaded", True, 100 / 6),
            ("dropped", True, 0),
            ("dropped", False, 100 / 6),
        ):
            moved = self.of_recorded("N-2", "moved", "nested", app="a", upgrade=upgrade, direction=direction)
            assert moved == pytest.approx(wanted * 1e-6)
        more = self.of_recorded("N-2", "moved", "independent", app="a", upgrade=True, direction="dropped")
        assert more == pytest.approx(100 / 6 * 1e-6)
        assert self.of_recorded("N-2", "energy_of_switches", app="a") > 0

    def test_a_share_selects_the_network(self):
        half, none = (self.of_recorded("N-1", "pruned", "trr", removed=removed) for removed in (0.5, 0.0))
        assert half != none

    @pytest.mark.parametrize(("layer", "known"), [(-1, True), (-2, True), (-9, False)])
    def test_layers_are_counted_from_the_last_that_was_pruned(self, layer, known):
        found = ask_of(recorded_factory.tables_of("N-1"), "value", "cells.pruned", "trr", removed=0.5, layer=layer)
        assert isinstance(found, Measured) == known
        assert not known or 0 < found.value <= 100

    def test_frames_that_a_system_improves(self):
        once, ours = (self.of_recorded("AMS-11", "improved", system) for system in ("one_time", "ams"))
        both = ask_of(recorded_factory.tables_of("AMS-11"), "difference", "cells.improved", "ams", "one_time")
        assert 0 < once < ours <= 100
        assert both.value == pytest.approx(ours - once)

    def test_members_and_exits_of_the_other_papers(self):
        assert self.of_recorded("E-1", "cost", "tent-small", of="phase_s") > 0
        minutes = self.of_recorded("E-1", "cost", "elasticdnn", of="phase_s", times=1 / 60)
        assert minutes == pytest.approx(self.of_recorded("E-1", "cost", "elasticdnn", of="phase_s") / 60)
        assert self.of_recorded("AS-14", "exits_and_light", "shufflenet", of="accuracy", times=100) > 1
        first, last = (self.of_recorded("AS-14", "exits_and_light", f"exit-{one}", of="macs") for one in (1, 3))
        assert first < last

    @pytest.mark.parametrize("name", TABLES)
    def test_a_run_without_the_data_leaves_every_cell_not_run(self, name):
        none = Made(runs=[])
        verdicts = cells.compare(TABLES[name], none)
        assert {one.result for one in verdicts} == {"not run"}
        kinds = {(str(one.claim.of.get("relation")), str(one.claim.statistic)): one.claim for one in verdicts}
        assert all(isolation.FAILED not in str(claim.measure(none)) for claim in kinds.values())
