"""The recorded scenes of a run, and equal views of runs that recorded none."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from loop_factory import ScriptedStreaming, rows, run, uploads
from tables_factory import Made

from driftlab.datasets.catalogue import open_stream, scene_properties
from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.travel import draw_travel
from driftlab.platform.results.relations.scenery import TRAJECTORY, sceneries, stops, travelled_m

SEED = 3


@pytest.mark.parametrize(
    ("name", "static_scene", "appearance_drift"),
    [("interview", True, False), ("dance", False, False), ("drift", False, True), ("driving_la", False, False)],
)
def test_a_stream_is_steady_or_drifts_or_neither(name: str, static_scene: bool, appearance_drift: bool):
    for world in ("streets", "city"):
        found = scene_properties(f"{world}/{name}", SEED)
        assert found is not None
        assert (found.static_scene, found.appearance_drift) == (static_scene, appearance_drift)
        assert found.stretches(20.0) == draw_travel(PRESETS[name], SEED).stretches(20.0)


@pytest.mark.parametrize("name", ["any-street", "any-city"])
def test_of_any_street_it_is_that_of_the_kind_that_is_shown(name: str):
    for seed in range(4):
        stream = open_stream(name, seed=seed, height=32, width=48, fps=1.0, duration_s=10.0)
        found, kind = scene_properties(name, seed), scene_properties(stream.name, seed)
        assert found is not None and kind is not None
        assert (found.appearance_drift, found.stretches(9.0)) == (kind.appearance_drift, kind.stretches(9.0))


@pytest.mark.parametrize("name", ["signs/motorway", "video:a.mp4"])
def test_other_streams_are_unknown(name: str):
    assert scene_properties(name, SEED) is None


def test_a_run_writes_down_where_its_camera_is():
    _, loop = run(ScriptedStreaming(uploads(5.0)))
    (device,), (motion,) = rows(loop, "devices"), loop.ledger.rows["motion"]
    travel = draw_travel(PRESETS["running"], device["stream_seed"])
    assert (device["static_scene"], device["appearance_drift"]) == (False, False)
    assert motion["time_s"].tolist() == [row[0] for row in travel.stretches(30.0)]
    assert motion["travelled_m"].tolist() == [travel.distance_m(time_s) for time_s in motion["time_s"]]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_stretches_give_every_distance(name: str):
    travel = draw_travel(PRESETS[name], SEED)
    way, times_s = pd.DataFrame(travel.stretches(100.0), columns=TRAJECTORY), pd.Series(np.linspace(0.0, 99.9, 333))
    assert travelled_m(way, times_s) == pytest.approx([travel.distance_m(time_s) for time_s in times_s], abs=1e-9)
    assert set(stops(way)) == {speed == 0 == other for (_, speed), (_, other) in pairwise(PRESETS[name].speed_mps)}


def made(workload: str, **tables: list[dict[str, object]]) -> Made:
    cell = {"cell": "c", "device": "d"}
    runs = [{"cell": "c", "workload": workload.partition("/")[2] or workload, "duration_s": 4.0, "status": "done"}]
    return Made(
        {"workloads": [{"name": workload}]}, runs=runs, **{"devices": [{**cell, "stream_seed": SEED}], **tables}
    )


@pytest.mark.parametrize("world", ["streets", "city"])
def test_an_older_run_is_drawn_again_and_a_recorded_one_is_read(world: str):
    older = made(f"{world}/walking_ny")
    (row,) = sceneries(older, older.frame("runs")["cell"]).to_dict("records")
    travel = draw_travel(PRESETS["walking_ny"], SEED)
    assert (row["static_scene"], row["appearance_drift"]) == (False, False)
    assert list(row["trajectory"].itertuples(index=False, name=None)) == travel.stretches(4.0)
    place = {"cell": "c", "device": "d"}
    newer = made(
        "streets/walking_ny",
        devices=[{**place, "stream_seed": SEED, "static_scene": True, "appearance_drift": True}],
        motion=[{**place, "time_s": k / 2, "travelled_m": float(k), "speed_mps": 2.0} for k in range(3)],
    )
    (row,) = sceneries(newer, newer.frame("runs")["cell"]).to_dict("records")
    assert (row["static_scene"], row["appearance_drift"], row["trajectory"]["travelled_m"].tolist()) == (
        True,
        True,
        [0.0, 1.0, 2.0],
    )


def test_other_streams_and_other_cells_have_no_scenery():
    (row,) = sceneries(made("signs/motorway"), made("signs/motorway").frame("runs")["cell"]).to_dict("records")
    assert row["trajectory"] is None
    assert row["static_scene"] != True  # noqa: E712  null, as it was read
    assert sceneries(made("signs/motorway"), made("signs/motorway").frame("runs")["workload"]).empty
