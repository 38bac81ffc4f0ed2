"""The distribution of nodes over processes does not affect tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from documents_factory import SHARES, SHARING, TINY

from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXPERIMENT = {
    "name": "packing",
    "systems": ["no_custom", {"name": "ams", "adaptation": {"name": "distill", "iterations": 3}}],
    "bounds": False,
    "workloads": [{"name": "streets/running", "duration_s": 16.0, "fps": 2, "height": 32, "width": 48}],
    "fleets": [{"name": "three", "devices": [{"hardware": "jetson-nx", "link": "lte", "count": 3}]}],
    "student": {"network": "half", "pretrain_steps": 2},
}
CLASSES, BOXES = (  # tasks whose labels are no label maps
    {
        **TINY,
        "name": network,
        "workloads": [{**TINY["workloads"][0], "name": workload, "duration_s": 6}],
        "systems": ["remote_tracking", TINY["systems"][2]],
        "student": {"network": network, "pretrain_steps": 20},
    }
    for workload, network in (("signs/motorway", "tiny_classifier"), ("streets/running", "tiny_detector"))
)
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An experiment with a user's member: the example of the docs, in a file outside all packages."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLES / "every_minute.py", folder)
    experiment = (EXAMPLES / "every_minute.yaml").read_text("utf-8")
    own = yaml.safe_load(experiment.replace("every_minute.py:", f"{folder}/every_minute.py:"))
    return {**own, "size": "tiny"}


def test_devices_and_applications_on_shared_actors_give_the_tables_of_one_process(packed, own, tmp_path):
    """`test_run.py` has a process for each of them."""
    for document in (EXPERIMENT, SHARING, SHARES, CLASSES, BOXES, own):
        name = document["name"]
        alone = run(document, out=tmp_path / "alone" / name).directory
        outcome = run(document, out=tmp_path / name, open_backend=lambda: packed)
        assert outcome.failed == ()
        assert differences(alone, outcome.directory) == []
    other = run({**EXPERIMENT, "seeds": [1]}, out=tmp_path / "other").directory
    assert any(line.startswith("cell") for line in differences(tmp_path / "packing", other))
