"""A network pruned for each domain: equal tables in one process, on Ray, and after an interruption."""

from __future__ import annotations

import shutil
from typing import Any

from driftlab.platform.lab.seal import resume, run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import table_file

CUT: dict[str, Any] = {"name": "surrogate", "keep_ratios": [0.5], "stages": [0.5], "epochs": 1}
DOCUMENT: dict[str, Any] = {
    "name": "elasticdnn-tiny",
    "bounds": False,
    "snapshots": 0,
    "window_s": 2,
    "systems": [
        {
            "name": "elasticdnn",
            "streaming": {"name": "on_device", "trigger": "domain", "period_s": 2, "rate_fps": 4},
            "adaptation": {"name": "elasticdnn", "iterations": 2},
            "scaling": CUT,
        },
        {
            "name": "elasticdnn+ams",
            "streaming": {"name": "ams", "interval_s": 2, "horizon_s": 4, "max_fps": 4},
            "adaptation": {"name": "elasticdnn_teacher", "iterations": 2},
            "scaling": CUT,
        },
    ],
    "workloads": [
        {
            "name": "domains:signs/town",
            "duration_s": 12,
            "fps": 4,
            "height": 16,
            "width": 16,
            "domain_labels": "oracle",
            "params": {
                "shifts": ["inversion", "fog"],
                "severities": [5],
                "domain_s": 6,
                "before_s": 2,
                "adapt_s": 2,
                "classes": 4,
            },
        }
    ],
    "seeds": [0],
    "student": {"network": "tiny_classifier", "pretrain_steps": 4},
}


def test_surrogates_are_the_same_inline_on_ray_and_resumed(packed, tmp_path):
    inline = run(DOCUMENT, out=tmp_path / "inline").directory
    torn = shutil.copytree(inline, tmp_path / "torn")
    cells = open_run(inline).table("runs")["cell"].to_pylist()
    table_file(torn / "tables", "runs", cells[-1]).unlink()
    assert (done := resume(torn)).done == 1 and done.kept == 1
    on_ray = run(DOCUMENT, out=tmp_path / "ray", open_backend=lambda: packed).directory
    assert differences(inline, torn) == [] and differences(inline, on_ray) == []
    tables = open_run(inline)
    rows = tables.table("updates").to_pylist()
    alone, taught = ([row for row in rows if ("+ams" in row["cell"]) is wanted] for wanted in (False, True))
    assert [(row["learner_site"], row["samples"]) for row in alone] == [("device", 8)] * 2  # one for each domain
    assert {row["learner_site"] for row in taught} == {"server"} and any(row["accepted"] for row in taught)
    down = [row for row in tables.table("transfers").to_pylist() if row["direction"] == "down"]
    assert sum(row["kind"] == "update" for row in down) == sum(row["version"] is not None for row in taught) > 1
