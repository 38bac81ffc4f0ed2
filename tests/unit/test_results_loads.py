"""Tables of loads: missed frames, judged forecasts, the figure, and images of the presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from claims_factory import ask_of
from command_factory import run_command
from figures_factory import drawn, hidden, lines, notes, show, texts
from tables_factory import Made, run_row, share_row

from driftlab.errors import RequestError
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.figures import load as figure
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.relations.lateness import with_lateness
from driftlab.platform.results.relations.loads import loads_by_fleet, misses, skills, stated_errors

PLACE = {"device": "d", "app": "a"}
STEPS = 80


def load_row(cell: str, step: int, **more: Any) -> dict[str, Any]:
    """Make a load that jumps from 0.2 to 0.8 after half of the readings, and a member that expects 0.5."""
    cpu, sensed = (0.2 if at < STEPS // 2 else 0.8 for at in (step, step - 1))
    usual = {"time_s": step / 2, "cpu": cpu, "sensed_cpu": sensed, "forecast_cpu": 0.5, "variant": step % 3}
    return {"cell": cell, **PLACE, **usual, **more}


def frame_row(cell: str, time_s: float, latency_ms: float | None) -> dict[str, Any]:
    processed = latency_ms is not None
    return {"cell": cell, **PLACE, "time_s": time_s, "processed": processed, "latency_ms": latency_ms}


@pytest.fixture
def tables() -> Made:
    runs = [run_row(system, seed) for system in ("x", "y") for seed in (0, 1)]
    cells = [run["cell"] for run in runs]
    return Made(
        {"systems": ["x", "y"]},
        runs=runs,
        loads=[load_row(cell, step) for cell in cells for step in range(STEPS)],
        shares=[{"cell": cell, **share_row(fps=4.0, latency_goal_ms=goal)} for cell, goal in
                zip(cells, (None, 100.0, 1000.0, None), strict=True)],
        variants=[{"cell": cell, **PLACE, "variant": k, "latency_ms": (50.0, 20.0, 80.0)[k]}
                  for cell in cells for k in range(3)],
        frames=[frame_row(cell, k / 4, ms) for cell in cells for k, ms in enumerate((80.0, 120.0, 250.0, 300.0, None))],
    )  # fmt: skip


def test_a_skipped_frame_or_one_later_than_its_goal_or_the_next_is_missed(tables: Made):
    shares = misses(tables).groupby("cell")["missed"].sum()
    assert shares.tolist() == [2, 4, 2, 2]
    tables.drop("loads", lambda row: row["cell"].startswith("x"))
    assert set(misses(tables)["cell"]) == {"y/w/one/seed-0", "y/w/one/seed-1"}


@pytest.mark.parametrize(("next_frame", "late"), [(True, [1, 1, 1, 1]), (False, [1, 1, 1, 0])])
def test_a_frame_without_a_latency_or_that_is_skipped_is_late_for_every_deadline(next_frame, late):
    """The last of these frames is late for the next frame, and in time for its goal."""
    frames = pd.DataFrame([frame_row("c", 0.0, None), frame_row("c", 0.25, None), frame_row("c", 0.5, 10.0),
                           frame_row("c", 0.75, 300.0)])  # fmt: skip
    frames["processed"] = [False, True, False, True]
    made = Made({}, shares=[{"cell": "c", **share_row(fps=4.0, latency_goal_ms=400.0)}])
    assert with_lateness(made, frames, next_frame=next_frame)["late"].tolist() == late


def test_each_load_is_judged_once_for_all_systems(tables: Made):
    assert {key: len(ones) for key, ones in loads_by_fleet(tables).items()} == {("one", 0): 1, ("one", 1): 1}
    rows = skills(tables)
    assert set(rows["fleet"]) == {"one"} and set(rows["seed"]) == {0, 1}
    found = rows.groupby(["kind", "step"])[["error", "skill"]].mean()
    assert found.loc[("persistence", 0)].tolist() == [pytest.approx(0.6 / (STEPS - 3)), 0]
    assert found.loc[("persistence", 1), "error"] == pytest.approx(2 * 0.6 / (STEPS - 3))
    assert found.loc[("mean", 0), "skill"] < -1
    assert stated_errors(tables).to_dict() == {("x", "one"): pytest.approx(0.3), ("y", "one"): pytest.approx(0.3)}
    tables.drop("loads", lambda row: row["time_s"] > 29)
    assert skills(tables).empty


def forecast_gain(tables: Made, fleets: list[str]) -> Measured | Untestable:
    return ask_of(tables, "value", "loads.forecast_gains", fleets=fleets)


def test_the_claim_is_judged_by_the_fleets_that_it_names(tables: Made):
    found = forecast_gain(tables, ["one"])
    assert isinstance(found, Measured)
    assert found.n == 2
    assert found.value == pytest.approx(skills(tables).query("kind == 'ar'")["skill"].mean())
    assert isinstance(forecast_gain(tables, ["one", "two"]), Untestable)
    tables.drop("loads", lambda row: row["cell"].endswith("1"))
    assert isinstance(forecast_gain(tables, ["one"]), Untestable)


def test_the_figure_shows_load_sensor_forecast_network_and_missed_frames(tables: Made):
    shown = show(figure, tables)
    assert [panel.title for panel in shown.panels] == ["w: x", "w: y"]
    found = lines(drawn(shown.panels[0]))
    assert found[figure.TRUE][1][38:42] == [0.2, 0.2, 0.8, 0.8]
    assert found[figure.SENSED][1][38:42] == [0.2, 0.2, 0.2, 0.8]
    assert set(found[figure.EXPECTED][1]) == {0.5}
    assert found[figure.NETWORK][1][:4] == [0.625, 0.25, 1.0, 0.625]
    assert found[figure.MISSED][0] == [0.75, 1.0]
    missed, errors, stated = shown.grids
    assert texts(missed) == {"x": ["60.0"], "y": ["40.0"]}
    assert list(texts(errors)) == ["persistence", "mean", "ar"]
    assert notes(errors)["persistence"] == [""] * 3
    assert texts(stated) == {"x": ["0.300"], "y": ["0.300"]}


def test_of_many_systems_the_first_of_each_scaling_member_is_drawn():
    kinds = {"a": "adascale", "a2": "adascale", "a3": "adascale", "b": "clairvoyant", "c": "legodnn", "d": "nas"}
    systems = [{"name": name, "base": "no_custom", "scaling": {"name": kind}} for name, kind in kinds.items()]
    for names, drawn_ones in (("a a2 a3 b c d", "a b c d"), ("a a2 a3 b c", "a a2 b c"), ("a a2 a3", "a a2 a3")):
        runs = [run_row(name, 0) for name in names.split()]
        made = Made(
            {"systems": systems},
            runs=runs,
            loads=[load_row(run["cell"], step) for run in runs for step in range(4)],
            shares=[{"cell": run["cell"], **share_row(fps=4.0)} for run in runs],
            variants=[{"cell": run["cell"], **PLACE, "variant": 0, "latency_ms": 50.0} for run in runs],
            frames=[frame_row(run["cell"], 0.0, 80.0) for run in runs],
        )
        assert [panel.title for panel in show(figure, made).panels] == [f"w: {name}" for name in drawn_ones.split()]


def test_without_a_load_the_figure_is_hidden(tables: Made):
    tables.drop("loads", lambda row: True)
    assert hidden(figure, tables)


def test_missing_networks_and_forecasts_are_not_drawn(tables: Made):
    tables.change("loads", forecast_cpu=lambda row: None, variant=lambda row: None)
    tables.drop("variants", lambda row: row["variant"] > 0)
    shown = show(figure, tables)
    assert {figure.EXPECTED, figure.NETWORK} & set(lines(drawn(shown.panels[0]))) == set()
    assert len(shown.grids) == 2


@pytest.mark.slow
def test_presets_and_files_are_listed_shown_and_drawn(tmp_path: Path):
    def call(*words: str) -> Any:
        return run_command(list(words), catch_exceptions=True)

    assert "cold_start" in call("list", "loads").output
    assert "scroll" in call("show", "loads/user", "--image", str(tmp_path / "user.png")).output
    file = tmp_path / "mine.csv"
    file.write_text("time_s,cpu,battery\n0,.5,1\n30,.7,0\n")
    facts = call("show", f"loads/{file}", "--image", str(tmp_path / "mine.png")).output
    assert "30 s" in facts
    assert "stops at the first" in facts
    import cv2

    for name in ("user", "mine"):
        assert np.unique(cv2.imread(str(tmp_path / f"{name}.png"))).size > 10
    assert isinstance(call("show", "loads/user", "--image", str(tmp_path / "no" / "a.png")).exception, RequestError)
    assert call("show", "loads/idle", "--image", str(tmp_path / "no.png")).exception is not None
    assert not (tmp_path / "no.png").exists()
