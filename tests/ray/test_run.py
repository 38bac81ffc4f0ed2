"""Whole runs on Ray: the same tables as in one process, while actors of every kind are killed."""

from __future__ import annotations

from typing import Any

from driftlab.actors import faults
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.run import run
from driftlab.platform.results.diff import differences

KILLS = 10
DOCUMENT: dict[str, Any] = {
    "name": "tiny",
    "systems": [
        "no_custom",
        {"name": "one_time", "streaming": {"name": "one_time", "sample_s": 3, "iterations": 4}},
        {
            "name": "ams",
            "streaming": {"name": "ams", "interval_s": 2},
            "adaptation": {"name": "distill", "iterations": 3},
        },
        {"name": "oracle", "streaming": {"name": "foresight", "window_s": 4, "iterations": 3}},
    ],
    "workloads": [{"name": "streets/running", "duration_s": 12, "fps": 2, "height": 32, "width": 48}],
    "seeds": [0, 1],
    "window_s": 3,
    "pictures": 2,
    "bounds": False,
    "student": {"network": "half", "pretrain_steps": 2},
}


class Shared(RayBackend):
    """Stays open from run to run."""

    def close(self) -> None:
        """Leave that to the test."""


def test_ten_kills_of_devices_applications_teachers_trainers_and_recorders_leave_the_tables_as_they_are(
    no_ray, tmp_path
):
    """The hardest packing too: every device and application in a process of its own."""
    reference = run(DOCUMENT, out=tmp_path / "inline").directory
    backend = Shared(ClusterConfig(workers=2, rack=1))
    try:
        with faults.storm(KILLS, 1.5, seed=0) as killed:
            for number in range(KILLS):
                outcome = run(DOCUMENT, out=tmp_path / f"ray-{number}", open_backend=lambda: backend)
                assert outcome.failed == ()
                assert differences(reference, outcome.directory) == []
                if len(killed) == KILLS:
                    break
    finally:
        RayBackend.close(backend)
    assert len(killed) == KILLS
    assert len({title.partition(".")[0] for title in killed}) >= 3


def test_classes_and_boxes_travel_as_label_maps_do(no_ray, tmp_path):
    backend = Shared(ClusterConfig(workers=2))
    try:
        for workload, network in (("signs/motorway", "tiny_classifier"), ("streets/running", "tiny_detector")):
            changes = {
                "workloads": [{**DOCUMENT["workloads"][0], "name": workload, "duration_s": 6}],
                "systems": ["remote_tracking", DOCUMENT["systems"][2]],
                "seeds": [0],
                "student": {"network": network, "pretrain_steps": 20},
            }
            reference = run({**DOCUMENT, **changes}, out=tmp_path / network).directory
            outcome = run({**DOCUMENT, **changes}, out=tmp_path / f"{network}-ray", open_backend=lambda: backend)
            assert outcome.failed == ()
            assert differences(reference, outcome.directory) == []
    finally:
        RayBackend.close(backend)
