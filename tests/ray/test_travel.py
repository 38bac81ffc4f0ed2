"""Files of users travel to processes that cannot read them.

The path of each file leads through a descriptor of a folder, which only this process has open.
"""

from __future__ import annotations

import os

import pytest
import tuning_factory
from documents_factory import TINY

from driftlab.cli.run import BackendChoice
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.tune.session import begin_search

pytestmark = pytest.mark.slow
OWN = """
from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.streaming.ams import Ams


@dataclass(frozen=True)
class Sender(Ams):
    interval_s: float = 2.0


@dataclass(frozen=True)
class Adapter(Tent):
    stream_batch: int = 5


class Net(nn.Module):
    task = "segmentation"

    def __init__(self, classes, height, width):
        super().__init__()
        self.size, self.body = (height, width), nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Conv2d(8, classes, 1)

    def forward(self, images):
        return F.interpolate(self.last(self.body(images)), self.size)
"""


@pytest.fixture
def own(tmp_path):
    """The path of a file that no other process can open."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/own.py").write_text(OWN)
    folder = os.open(tmp_path / "files", os.O_RDONLY)  # not inherited
    yield f"/proc/self/fd/{folder}/own.py"
    os.close(folder)


@pytest.mark.parametrize("placement", ["cells", "nodes"])
def test_the_files_of_a_method_and_a_network_travel_with_a_run(no_ray, own, tmp_path, placement):
    system = {"name": "own", "streaming": f"{own}:Sender", "adaptation": {"name": "distill", "iterations": 3}}
    student = {"network": f"{own}:Net", "pretrain_steps": 2}
    document = {**TINY, "systems": [system], "student": student, "compute": {"placement": placement}}
    backend = BackendChoice("ray", None, 1, None, False).opener
    on_ray = run(document, out=tmp_path / "ray", open_backend=backend(parse(document), tmp_path / "ray"))
    assert on_ray.failed == ()
    assert differences(run(document, out=tmp_path / "inline").directory, on_ray.directory) == []


def test_the_file_of_a_method_travels_with_a_search(one_worker, own, tmp_path):
    system = {"name": "own", "base": "tent", "adaptation": f"{own}:Adapter"}
    space = {"systems.0.adaptation.learning_rate": [1e-3, 1e-2]}
    experiment = {**tuning_factory.SPACE["experiment"], "systems": [system]}
    changes = {"system": "own", "space": space, "searcher": "grid", "trials": 2, "held_out": []}
    document = tuning_factory.document(experiment=experiment, **changes)
    with begin_search(document, tmp_path / "search") as session:
        one_worker.run(session, lambda assignment, outcome: None)
    trials = open_run(tmp_path / "search").frame("trials")
    assert trials["status"].tolist() == ["done", "done"], trials["reason"].tolist()
