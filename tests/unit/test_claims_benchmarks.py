"""Measurements of benchmarks fill cells of papers' tables that no run can measure."""

from __future__ import annotations

import pytest

from driftlab.errors import RequestError
from driftlab.platform.results.claims import benchmarks, cells, ledger
from driftlab.platform.results.claims.ledger import Digests, read_ledger, stale

MEMORY = {"benchmark": "training_memory", "classes": 10, "stages_mb": [4, 3, 2, 1], "exits": [0.1, 0.2, 0.3]}
LIGHT = ("shufflenet", "squeezenet", "resnet18", "mobilenet_v3_large", "mobilenet_v3_small", "transformer")
MEMORY |= {"light_mb": dict.fromkeys(LIGHT, 5), "light_h": dict.fromkeys(LIGHT, 2.0), "stages_h": [3, 2, 2, 1]}
STAGE_2 = "adascale-table3: Stage 2, training memory"


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """The lines that a benchmark prints, and an empty ledger."""
    lines = [MEMORY]
    (tmp_path / "ledger.jsonl").touch()
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "ledger.jsonl")
    monkeypatch.setattr(benchmarks, "run", lambda name, words: lines)
    return lines


def test_cells_have_the_value_of_their_line_and_no_interval(printed, capsys):
    benchmarks.main(["training_memory"])
    benchmarks.main(["training_memory"])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["23", "0"]
    lines = {line["claim"]: line for line in read_ledger(ledger.LEDGER)}
    assert lines[STAGE_2]["value"] == 3
    assert lines["adascale-fig7c: two branches, "]["value"] == pytest.approx(10)  # percent
    assert not any("table4" in name for name in lines)  # a hundred classes
    (cell,) = (one for one in cells.table_of("adascale-table3").cells if one.id == STAGE_2)
    verdict = cells.verdict_of(cell, cell.preferred(lines.values()))
    assert (verdict.measured.value, verdict.measured.low, verdict.result) == (3, None, "information")
    assert stale(lines[STAGE_2], cell, Digests()) == ""
    assert stale({**lines[STAGE_2], "spec_digest": "other"}, cell, Digests()) == "other experiment since"


def test_the_newest_line_counts(printed):
    printed.append(MEMORY | {"stages_mb": [9, 8, 7, 6]})
    benchmarks.main(["training_memory"])
    assert {line["claim"]: line["value"] for line in read_ledger(ledger.LEDGER)}[STAGE_2] == 8


def test_every_cell_of_a_benchmark_names_one_that_exists():
    named = [cell for table in cells.every_table().values() for cell in table.cells if cell.benchmark]
    assert len(named) > 25
    for cell in named:
        assert (ledger.PACKAGE.parent / f"benchmarks/{cell.benchmark['name']}.py").is_file()
        assert cell.not_testable  # a run would measure it too


def test_a_benchmark_must_be_named():
    with pytest.raises(RequestError, match="Name a benchmark"):
        benchmarks.main([])
    with pytest.raises(RequestError, match="no-such"):
        benchmarks.main(["no-such"])


@pytest.mark.slow
def test_a_benchmark_runs_with_its_options():
    (line,) = benchmarks.run("training_memory", ["--quick", "--classes", "3"])
    assert (line["benchmark"], line["classes"]) == ("training_memory", 3)
