"""Comparing runs: equal ones give no line, and each kind of difference names its place."""

from __future__ import annotations

import shutil

import pytest
import results_factory as factory
import yaml

from driftlab.platform.results.report.page import side_by_side
from driftlab.platform.results.tables.diff import differences, figure_differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.results.tables.run_pair import compare_figures

CELL = "one_time/w/two-phones/seed-0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return factory.make_run(folder, systems=("no_custom", "one_time"), workloads=("w",), seeds=(0,))


@pytest.fixture
def pair(made, tmp_path):
    return shutil.copytree(made, tmp_path / "a"), shutil.copytree(made, tmp_path / "b")


def rewrite(folder, change):
    rows = factory.rows("one_time", "w", 0, 120.0, 2.0, True)
    change(rows)
    Recorder(str(folder)).write(CELL, rows)


@pytest.mark.slow
def test_equal_runs_do_not_differ(pair):
    assert differences(*pair) == []


@pytest.mark.slow
def test_host_times_and_settings_do_not_count(pair):
    rewrite(pair[1], lambda rows: rows["runs"][0].update(host_seconds=99.0))
    settings = yaml.safe_load((pair[1] / "spec.yaml").read_text()) | {"backend": "ray", "workers": 2, "out": "x"}
    (pair[1] / "spec.yaml").write_text(yaml.safe_dump(settings))
    assert differences(*pair) == []


@pytest.mark.slow
def test_one_bit_is_found_with_its_place(pair):
    def flip(rows):
        values = rows["frames"][1]["score_frame"]
        values[7] += 1e-16

    rewrite(pair[1], flip)
    (line,) = differences(*pair)
    assert line.startswith(f"table 'frames', cell '{CELL}', column 'score_frame', row 247: 0.")
    assert line.endswith("(1 of 480 rows differ)")


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs", "shown"), [(0.0, -0.0, "0.0 vs -0.0"), (None, 0.0, "null vs 0.0")])
def test_signed_zero_and_null_are_separate_values(pair, ours, theirs, shown):
    rewrite(pair[0], lambda rows: rows["updates"][0].update(phi=ours))
    rewrite(pair[1], lambda rows: rows["updates"][0].update(phi=theirs))
    (line,) = differences(*pair)
    assert f"column 'phi', row 0: {shown}" in line


@pytest.mark.slow
def test_nulls_in_the_same_places_are_equal(pair):
    for folder in pair:
        rewrite(folder, lambda rows: rows["updates"][0].update(phi=None, loss_last=float("nan")))
    assert differences(*pair) == []


@pytest.mark.slow
def test_rows_cells_images_and_spec(pair):
    rewrite(pair[1], lambda rows: (rows["devices"].pop(), rows["snapshots"][0].update(image=b"other")))
    shutil.rmtree(pair[1] / "tables/runs")
    rewrite(pair[1], lambda rows: (rows["devices"].pop(), rows["snapshots"][0].update(image=b"other")))
    settings = yaml.safe_load((pair[1] / "spec.yaml").read_text())
    settings["student"] = {"network": "wide"}
    (pair[1] / "spec.yaml").write_text(yaml.safe_dump(settings))
    lines = differences(*pair)
    assert lines[0] == "spec 'student': None vs {'network': 'wide'}"
    assert lines[1] == f"cell 'no_custom/w/two-phones/seed-0': only in {pair[0]}"
    assert lines[2] == f"table 'devices', cell '{CELL}', 2 rows vs 1 rows"
    assert "column 'image', row 0: " in lines[3]
    assert "5 bytes" in lines[3]
    assert len(lines) == 4


@pytest.mark.slow
def test_figures_may_depart_by_a_share(pair):
    assert figure_differences(*pair, 0.0) == []
    score = factory.rows("one_time", "w", 0, 120.0, 2.0, True)["runs"][0]["score"]
    rewrite(pair[1], lambda rows: rows["runs"][0].update(score=score * 0.96))
    assert len(differences(*pair)) == 1
    assert figure_differences(*pair, 0.05) == []
    assert figure_differences(*pair, 0.03) == [f"one_time w 0, score: {score:.6g} vs {score * 0.96:.6g} (4.0%)"]


@pytest.mark.slow
def test_a_figure_that_one_run_lacks_departs(pair):
    rewrite(pair[1], lambda rows: rows["runs"][0].update(score=None))
    assert len(figure_differences(*pair, 1.0)) == 1


@pytest.mark.slow
def test_figures_stand_side_by_side(pair):
    rewrite(pair[1], lambda rows: rows["runs"][0].update(uplink_kbps=rows["runs"][0]["uplink_kbps"] * 1.25))
    found = {one.name: one for one in compare_figures(*map(open_run, pair)) if one.cell == "one_time w 0"}
    assert found["uplink_kbps"].share == pytest.approx(0.2)
    assert found["score"].share == 0.0
    assert not found["uplink_kbps"].within(0.19)
    assert found["latency_ms"].first > 0  # a time, which is shown alone: a profile's in one run, measured in the other
    ((grid,),) = (section.grids for section in side_by_side(*map(open_run, pair)))
    assert [cell.text for cell in grid.rows["one_time w 0, uplink_kbps"]][-1] == "20.0%"
