"""Devices in another process: equal tables, and as many bytes on the socket as the tables count."""

from __future__ import annotations

import pytest
from remote_factory import RemoteBackend

from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.inline import InlineBackend

pytestmark = pytest.mark.slow  # two runs, which all of them read

DOCUMENT = {
    "name": "apart",
    "systems": ["ams"],
    "bounds": False,
    "snapshots": 0,
    "student": {"network": "half", "pretrain_steps": 2},
    "workloads": [{"name": "streets/running", "duration_s": 25, "fps": 2, "height": 32, "width": 48}],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run AMS once with its device in a child process, and once in this process only."""
    folder, opened = tmp_path_factory.mktemp("runs"), []

    def opening() -> RemoteBackend:
        opened.append(RemoteBackend())
        return opened[0]

    for name, open_backend in (("apart", opening), ("here", InlineBackend)):
        outcome = run(DOCUMENT, out=folder / name, open_backend=open_backend)
        assert not outcome.failed, outcome.failed
    return folder, opened[0]


def test_the_tables_are_the_same(ran):
    folder, _ = ran
    assert differences(folder / "apart", folder / "here") == []
    assert len(open_run(folder / "apart").frame("frames")) == 50


def test_bytes_between_processes_equal_those_of_the_tables(ran):
    folder, backend = ran
    transfers = open_run(folder / "apart").frame("transfers")
    sent = transfers[transfers["arrive_s"] < 25].groupby("kind")["bytes"].sum()
    assert backend.crossed["upload"] == sent["samples"] > 0
    assert backend.crossed["train"] == sent["update"] > 0


def test_no_frame_crosses_the_line_but_for_the_oracle(ran):
    _, backend = ran
    assert set(backend.crossed) <= {"upload", "train", "sample_with_truth", "build"}


def test_the_child_has_ended(ran):
    assert ran[1].child.exitcode == 0
