"""The experiment runs the settings that searches recommended and docs keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from driftlab.platform.lab.read import load

TUNED = sorted((Path(__file__).resolve().parents[2] / "docs" / "tuned").glob("*.yaml"))


@pytest.mark.parametrize("path", [path for path in TUNED if path.stem != "just_in_time"], ids=lambda path: path.stem)
def test_size_tuned_runs_tuned_settings(path: Path):
    best = yaml.safe_load(path.read_text(encoding="utf-8"))
    (system,) = (one for one in load("ams-table1", ["size=tuned"]).systems if one.name == path.stem)
    for place, value in best["settings"].items():
        _, _, slot, name = place.split(".")
        assert getattr(system, slot)[name] == pytest.approx(value, rel=0.01), place


def test_a_search_without_a_better_trial_is_kept_too():
    (path,) = (path for path in TUNED if path.stem == "just_in_time")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["trial"] == 0
