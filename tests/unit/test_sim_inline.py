"""The backend in this process: plain objects, plain calls, payloads that stay away from the driver."""

from __future__ import annotations

import pytest

from driftlab.platform.core.records import Reply
from driftlab.platform.sim import inline
from driftlab.platform.sim.inline import InlineBackend
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


def test_nodes_of_one_name_and_two_kinds_are_two(session):
    for number, kind in enumerate(("device", "learner")):
        session.place(NodeId(kind, "a"), number)
    assert session.result(session.call(NodeId("device", "a"), "add", 0)).facts == 0
    assert session.result(session.call(NodeId("learner", "a"), "add", 0)).facts == 1


def test_a_closed_session_has_no_nodes(session):
    session.place(NodeId("device", "a"), 1)
    session.checkpoint()
    session.close()
    with pytest.raises(KeyError):
        session.call(NodeId("device", "a"), "add", 1)
