"""A run with domains: ground-truth, detected and hidden boundaries, determinism, and refused requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_factory import run_command

from driftlab.errors import RequestError
from driftlab.platform.lab.read import load, parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run

WORKLOAD: dict[str, Any] = {
    "name": "domains:signs/town",
    "duration_s": 12,
    "fps": 4,
    "height": 16,
    "width": 16,
    "params": {"shifts": ["inversion", "fog"], "severities": [5], "domain_s": 3, "adapt_s": 1, "classes": 4},
}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "domains-test",
        "systems": [{"name": "tent", "adaptation": {"name": "tent", "stream_batch": 4, "episodic": True}}],
        "workloads": [{**WORKLOAD, "domain_labels": kind, "alias": kind} for kind in ("oracle", "detected", "hidden")],
        "bounds": False,
        "snapshots": 0,
        "student": {"network": "tiny_classifier", "pretrain_steps": 4},
        **changes,
    }


@pytest.mark.slow
def test_detection_costs_energy_and_scores_skip_the_frames_of_adaptation(tmp_path: Path):
    found = open_run(run(document(), out=tmp_path / "run").directory)
    runs = {row["workload"]: row for row in found.table("runs").to_pylist()}
    assert runs["detected"]["energy_j"] > 1.1 * runs["hidden"]["energy_j"]
    frames = [row for row in found.table("frames").to_pylist() if "/hidden/" in row["cell"]]
    judged = [row["score_frame"] is not None for row in frames]
    assert judged == [k % 12 >= 4 for k in range(48)]
    assert len({row["scene"] for row in frames}) == 2


def test_the_experiment_is_valid_and_an_unknown_shift_is_refused():
    assert [workload.name for workload in load("domains").workloads] == ["domains:set:digits"]
    with pytest.raises(RequestError, match="value of shifts"):
        parse(document(workloads=[{**WORKLOAD, "params": {"shifts": ["no_such"]}}]))
    with pytest.raises(RequestError, match=r"usps\.bz2"):
        parse(document(workloads=[{"name": "domains:set:usps:/nowhere"}]))


@pytest.mark.parametrize("name", ["set:usps:/nowhere", "cityscapes:/nowhere", "domains:domains:set:digits"])
def test_a_wrong_base_is_one_message_and_exit_code_2(name):
    result = run_command(["show", f"workloads/{name}"])
    assert isinstance(result.exception, RequestError) or result.exit_code == 2
