"""The backend in this process: plain objects, plain calls, payloads that stay away from the driver."""

from __future__ import annotations

import pytest

from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim import inline
from driftlab.platform.sim.inline import NODE_CLASSES, InlineBackend
from driftlab.platform.sim.session import NodeId


class Counter:
    def __init__(self, first):
        self.total = first

    def add(self, number):
        self.total += number
        return Reply(self.total, {"frames": [{"frame": [self.total]}]}, payload=100 * self.total)


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(inline, "import_class", lambda target: Counter)
    return InlineBackend().open("cell")


def test_calls_run_in_the_order_in_which_they_were_made(session):
    node = NodeId("device", "a")
    session.place(node, 1)
    first, second = session.call(node, "add", 2), session.call(node, "add", 3)
    assert [session.result(job).facts for job in (second, first)] == [6, 3]


def test_a_job_stands_for_its_payload_and_the_driver_never_has_it(session):
    first, second = NodeId("device", "a"), NodeId("learner", "a")
    session.place(first, 1)
    job = session.call(first, "add", 2)
    session.place(second, job)
    assert session.result(session.call(second, "add", job)).facts == 300 + 300
    assert session.result(job) == Reply(3, {"frames": [{"frame": [3]}]}, None)


def test_nodes_of_one_name_and_two_kinds_are_two(session):
    for number, kind in enumerate(("device", "learner")):
        session.place(NodeId(kind, "a"), number)
    assert session.result(session.call(NodeId("device", "a"), "add", 0)).facts == 0
    assert session.result(session.call(NodeId("learner", "a"), "add", 0)).facts == 1


def test_a_closed_session_has_forgotten_its_nodes(session):
    session.place(NodeId("device", "a"), 1)
    session.checkpoint()
    session.close()
    with pytest.raises(KeyError):
        session.call(NodeId("device", "a"), "add", 1)


def test_one_thread_computes():
    import cv2
    import torch

    InlineBackend()
    assert torch.get_num_threads() == cv2.getNumThreads() == 1


NAMES = {
    "device": "CameraNode",
    "application": "AppNode",
    "teacher": "TeacherNode",
    "learner": "LearnerNode",
    "builder": "Builder",
    "recorder": "Recorder",
}


@pytest.mark.parametrize("kind", sorted(NODE_CLASSES))
def test_every_kind_of_node_has_its_class(kind):
    assert import_class(NODE_CLASSES[kind]).__name__ == NAMES[kind]
