"""The calibration page: the measured, the failed and the unmeasured values."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from driftlab.datasets.city.presets import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def calibrate():
    spec = importlib.util.spec_from_file_location("calibrate", ROOT / "benchmarks" / "calibrate" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dance(calibrate):
    return calibrate.StreetScore(
        preset="dance",
        settings=dict(SETTINGS["dance"]),
        lessons={},
        steps=10,
        fps=4.0,
        duration_s=60.0,
        seeds=[1000, 1001],
        none=[0.70, 0.74],
        tracking=[0.60, 0.62],
    )


def cells(text, preset):
    """Read the cells of a preset's row in the first table."""
    return next(
        [cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines() if f"| {preset} |" in line
    )


def test_the_page_holds_the_stored_rows(calibrate):
    text = calibrate.PAGE.read_text(encoding="utf-8")
    assert calibrate.written(calibrate.kept()) in text
    assert all(row.seeds[0] >= 1000 and len(row.seeds) >= 6 and row.fps >= 4 for row in calibrate.kept())


def test_every_street_of_the_paper_has_a_target_and_a_setting(calibrate):
    assert set(calibrate.TARGETS) == set(SETTINGS) - {"drift"}
    assert all(0 < value < 1 for pair in calibrate.TARGETS.values() for value in pair)
    assert calibrate.SYSTEMS == ("no_custom", "remote_tracking")  # never a method that adapts


def test_a_score_is_within_missed_or_not_measured(calibrate, dance):
    row = cells(calibrate.written([dance]), "dance")
    assert row[1:] == ["0.728", "0.720", "not measured yet", "0.864", "0.610 (missed)", "not measured yet"]
    elsewhere = replace(dance, settings={"variety": 9.0})
    assert "not measured yet" in cells(calibrate.written([elsewhere]), "dance")[2]
    assert "variety 9" in calibrate.written([elsewhere])


def test_a_repeated_measurement_replaces_the_first(calibrate, dance, tmp_path):
    path = tmp_path / "kept.json"
    fresh = replace(dance, seeds=[2000, 2001], none=[0.5, 0.6])
    for row in (dance, fresh, replace(dance, none=[0.1, 0.2])):
        calibrate.keep(row, path)
    found = calibrate.kept(path)
    assert [(row.seeds, row.none) for row in found] == [([2000, 2001], [0.5, 0.6]), ([1000, 1001], [0.1, 0.2])]


def test_writing_the_page_changes_the_measured_block_only(calibrate, dance, tmp_path):
    page, path = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text(f"# Before\n\n{calibrate.BEGIN}\nold\n{calibrate.END}\n\nAfter.\n", encoding="utf-8")
    calibrate.keep(dance, path)
    calibrate.write_page(page, path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Before\n") and text.endswith("After.\n") and "old" not in text
    assert calibrate.written([dance]) in text


@pytest.mark.slow
def test_a_measurement_runs_both_systems_on_every_seed(calibrate, monkeypatch, tmp_path):
    monkeypatch.setattr(calibrate, "STEPS", 0)
    monkeypatch.setattr(calibrate, "DURATION_S", 2.0)
    row = calibrate.measure("interview", {"variety": 0.5}, [1000, 1001])
    assert len(row.none) == len(row.tracking) == 2 and row.seeds == [1000, 1001]
    assert min(row.tracking) > max(row.none)  # the weights are random: only tracked labels are right
    calibrate.keep(row, tmp_path / "kept.json")
    assert calibrate.kept(tmp_path / "kept.json") == [row]
