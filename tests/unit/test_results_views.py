"""Tables of a cell's parts and of scores per class, and views that join them with the cells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import results_factory as factory
from tables_factory import Made

import driftlab
from driftlab.datasets.frames import NO_CLASS
from driftlab.platform.lab.cells import resolved, systems_of
from driftlab.platform.lab.read import parse
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task
from driftlab.platform.results.relations.base import members, slot, slots
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.recorder import Recorder, as_table
from driftlab.platform.results.tables.systems import recorded_slots, slots_of
from driftlab.platform.sim.rows import class_columns, system_columns

SYSTEMS: list[Any] = [
    "no_custom",
    {"name": "mine", "base": "ams", "streaming": {"name": "ams", "interval_s": 3, "patience": 0.6}},
    {"name": "sizes", "base": "nestdnn", "scaling": {"name": "nested", "keep_ratios": [1.0, 0.5]}},
]
CONFUSIONS = np.array([[[6, 2, 0], [1, 3, 0], [0, 0, 0]]])


def counted(task: Task, by_class: Any, device: str = "d") -> SimpleNamespace:
    account, networks = SimpleNamespace(by_class=by_class), SimpleNamespace(task=task)
    of_device, spec = SimpleNamespace(spec=SimpleNamespace(name=device)), SimpleNamespace(name="a")
    return SimpleNamespace(device=of_device, spec=spec, account=account, networks=networks)


def segmented(device: str = "d") -> SimpleNamespace:
    none = np.empty(0)
    return counted(SEGMENTATION, SEGMENTATION.by_class(CONFUSIONS, none, none, 3), device)


def made() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Give the spec of an experiment and the rows that its systems leave."""
    experiment = parse({"name": "x", "systems": SYSTEMS, "workloads": [{"name": "streets/running"}]})
    columns = [system_columns(SimpleNamespace(system=system)) for system in systems_of(experiment)]
    return resolved(experiment), as_table("systems", "c", columns).to_pylist()


def test_the_table_of_systems_agrees_with_the_spec():
    spec, rows = made()
    names = [row["name"] for row in (*spec["systems"], *spec["bound_rows"])]
    assert len(names) > len(SYSTEMS)
    assert recorded_slots(rows) == slots_of(spec, names)


def test_slots_are_read_from_the_table_and_of_older_runs_from_the_spec():
    spec, rows = made()
    tables = Made({"systems": ["ams", *spec["systems"]]}, systems=[{**row, "cell": "c"} for row in rows])
    tables.change("systems", value=lambda row: "7" if row["parameter"] == "interval_s" else row["value"])
    assert slot(tables, "mine", "streaming")["interval_s"] == 7
    assert slot(tables, "ams", "streaming")["interval_s"] == 10.0
    assert list(slots(tables, ["mine", "ams", "no_custom"])) == ["mine", "ams", "no_custom"]
    assert slot(tables, "no_custom", "adaptation").params == ()
    assert members(Made(runs=[], systems=rows), "scaling") == {}


def test_classes_are_counted_over_the_session():
    table = as_table("classes", "c", [class_columns(segmented())]).to_pydict()
    assert (table["truth"], table["predicted"], table["hits"]) == ([8, 4, 0], [7, 5, 0], [6, 3, 0])
    assert table["score"] == [pytest.approx(6 / 9), 0.5, None]


def test_frames_are_counted_by_class_where_their_truth_is_known():
    truth, predicted = np.array([0, 0, 0, 1, 2, NO_CLASS]), np.array([0, 0, 1, 1, 1, 2])
    by_class = CLASSIFICATION.by_class(CLASSIFICATION.counts(predicted, truth, 4), predicted, truth, 4)
    table = as_table("classes", "c", [class_columns(counted(CLASSIFICATION, by_class))]).to_pydict()
    assert (table["truth"], table["predicted"], table["hits"]) == ([3, 1, 1, 0], [2, 3, 0, 0], [2, 1, 0, 0])
    assert table["score"] == [pytest.approx(2 / 3), 1.0, 0.0, None]


def test_tasks_that_do_not_count_by_class_leave_no_rows():
    assert DETECTION.by_class(np.array([[1, 2, 3]]), np.empty(0), np.empty(0), 2) is None
    assert class_columns(counted(DETECTION, None)) is None


@pytest.mark.slow
def test_views_have_the_cell_columns_in_every_row(tmp_path: Path):
    run = driftlab.open_run(factory.make_run(tmp_path, seeds=(0, 1), snapshots=False))
    scores = run.frame("scores")
    joined = run.frame("frames").merge(run.frame("runs")[["cell", "system", "workload", "fleet", "seed"]], on="cell")
    assert len(scores) == len(joined) > 0
    for name in ("system", "workload", "fleet", "seed", "device", "app", "scene", "score_window"):
        assert scores[name].tolist() == joined[name].tolist(), name
    asked = run.sql("select system, avg(score_frame) as s from scores group by 1 order by 1").to_pylist()
    assert [row["s"] for row in asked] == pytest.approx(joined.groupby("system")["score_frame"].mean().tolist())


def test_scores_by_class_are_those_of_the_table(tmp_path: Path):
    folder = factory.make_run(tmp_path, systems=("no_custom",), workloads=("w",), seeds=(0,), snapshots=False)
    rows = factory.rows("no_custom", "w", 0, 10.0, 1.0, False)
    Recorder(str(folder)).write(
        "no_custom/w/two-phones/seed-0", {**rows, "classes": [class_columns(segmented("cam-0"))]}
    )
    found = driftlab.open_run(folder).classes()
    assert found[["system", "seed", "class", "hits"]].to_numpy().tolist() == [
        ["no_custom", 0, 0, 6],
        ["no_custom", 0, 1, 3],
        ["no_custom", 0, 2, 0],
    ]
    assert Tables(driftlab.open_run(folder)).frame("class_scores")["score"].isna().tolist() == [False, False, True]
