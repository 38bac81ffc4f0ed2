"""Pareto fronts and recovery after a change of scene, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from tables_factory import Made

from driftlab.platform.results.relations.frontiers import pareto, recoveries


def test_a_front_has_the_points_that_no_other_one_beats():
    points = pd.DataFrame(
        [("dear", 0.9, 9.0), ("beaten", 0.5, 3.0), ("cheap", 0.4, 1.0), ("good", 0.7, 3.0), ("same", 0.7, 3.0),
         ("wasteful", 0.7, 4.0), ("unknown", math.nan, 0.1), ("free", 0.1, math.nan)],
        columns=["system", "score", "kbps"],
    )  # fmt: skip
    assert pareto(points, "score", "kbps")["system"].tolist() == ["cheap", "good", "same", "dear"]
    assert pareto(points.iloc[:0], "score", "kbps").empty


def frames(scores: list[float], scenes: list[int], device: str = "d") -> list[dict[str, Any]]:
    return [
        {"cell": "c", "device": device, "app": "a", "time_s": 2.0 * k, "scene": scene, "score_live": score}
        for k, (score, scene) in enumerate(zip(scores, scenes, strict=True))
    ]


def test_recovery_is_counted_from_each_change_of_scene_to_the_next():
    scores = [0.6, 0.7, 0.69, 0.3, 0.5, 0.68, 0.7, 0.2, 0.3]
    rows = frames(scores, [0, 0, 1, 1, 1, 1, 1, 0, 0]) + frames([0.5, 0.5], [3, 3], device="still")
    tables = Made(runs=[{"cell": "c", "system": "s", "workload": "w", "fleet": "f", "seed": 0}], frames=rows)
    found = recoveries(tables, tolerance=0.02)
    assert found[["change_s", "before", "lost", "recover_s"]].to_numpy().tolist() == [
        pytest.approx([4.0, 0.7, 0.4, 6.0]),
        pytest.approx([14.0, 0.7, 0.5, math.nan], nan_ok=True),
    ]
    assert found["system"].tolist() == ["s", "s"]
    assert recoveries(tables, tolerance=0.25)["recover_s"].iloc[0] == 4.0
    assert recoveries(Made()).empty
