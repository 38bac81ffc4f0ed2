"""Whole runs on Ray: the same tables as in one process, while actors of every kind are killed."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from documents_factory import SHARING, TINY

from driftlab.actors import faults
from driftlab.platform.grid.run import run
from driftlab.platform.results.tables.diff import differences

LIMIT_S = 200  # a run takes seconds, and a kill comes every 1.5 s
DOCUMENT: dict[str, Any] = {**TINY, "workloads": [{**TINY["workloads"][0], "duration_s": 12}], "seeds": [0, 1]}


@pytest.mark.parametrize("document", [DOCUMENT, SHARING], ids=["alone", "shared"])
def test_kills_of_devices_applications_teachers_trainers_and_recorders_leave_the_tables_as_they_are(
    open_ray, tmp_path, document
):
    """The hardest packing too: every device and application in a process of its own."""
    reference = run(document, out=tmp_path / "inline").directory
    backend = open_ray(workers=2, rack=1)
    deadline = time.monotonic() + LIMIT_S
    with faults.kill_repeatedly(len(faults.EVERY_KIND), 1.5, seed=0) as killed:
        for number in itertools.count():
            outcome = run(document, out=tmp_path / f"ray-{number}", open_backend=lambda: backend)
            assert outcome.failed == ()
            assert differences(reference, outcome.directory) == []
            if len(killed) == len(faults.EVERY_KIND):
                break
            assert time.monotonic() < deadline, f"{number + 1} runs, and no more was killed than {killed}"
    assert sorted(map(faults.kind_in, killed)) == sorted(faults.EVERY_KIND)


def test_classes_and_boxes_travel_as_label_maps_do(open_ray, tmp_path):
    backend = open_ray(workers=2)
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
