"""How the nodes are packed into processes never reaches a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from documents_factory import SHARES, SHARING, TINY

from driftlab.platform.grid.run import run
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
CLASSES, BOXES = (  # as labels, which travel as label maps do
    {
        **TINY,
        "name": network,
        "workloads": [{**TINY["workloads"][0], "name": workload, "duration_s": 6}],
        "systems": ["remote_tracking", TINY["systems"][2]],
        "student": {"network": network, "pretrain_steps": 20},
    }
    for workload, network in (("signs/motorway", "tiny_classifier"), ("streets/running", "tiny_detector"))
)
OWN = Path(__file__).resolve().parents[2] / "docs" / "your-own-method.md"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An experiment with a member of one's own: the page's, in a file that no package holds."""
    folder = tmp_path_factory.mktemp("own")
    files = dict(re.findall(r"^```\w+ (every_minute\.\w+)\n(.*?)^```$", OWN.read_text(), re.MULTILINE | re.DOTALL))
    (folder / "every_minute.py").write_text(files["every_minute.py"])
    own = yaml.safe_load(files["every_minute.yaml"].replace("every_minute.py:", f"{folder}/every_minute.py:"))
    return {**own, "size": "tiny"}


@pytest.fixture(scope="module")
def alone(own, tmp_path_factory):
    """Runs in one process, by the names of their experiments."""
    folder, documents = tmp_path_factory.mktemp("inline"), (EXPERIMENT, SHARING, SHARES, CLASSES, BOXES, own)
    return {document["name"]: run(document, out=folder / document["name"]).directory for document in documents}


@pytest.mark.parametrize(("workers", "rack", "others"), [(1, 8, (SHARES, BOXES)), (2, 1, (CLASSES, "own"))])
def test_any_number_of_workers_and_any_rack_give_the_tables_of_one_process(
    open_ray, own, alone, tmp_path, workers, rack, others
):
    """Alone or sharing a device, each is packed in either way; the other kinds take turns."""
    backend = open_ray(workers=workers, rack=rack)
    for document in (EXPERIMENT, SHARING, *(own if one == "own" else one for one in others)):
        outcome = run(document, out=tmp_path / document["name"], open_backend=lambda: backend)
        assert outcome.failed == ()
        assert differences(alone[document["name"]], outcome.directory) == []


def test_another_seed_gives_other_tables(alone, tmp_path):
    other = run({**EXPERIMENT, "seeds": [1]}, out=tmp_path).directory
    assert any(line.startswith("cell") for line in differences(alone["packing"], other))
