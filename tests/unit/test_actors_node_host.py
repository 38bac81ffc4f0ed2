"""A node host runs calls in order, refuses calls after a lost one, and returns the nodes' errors."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.actors.node_host import Failure, NodeHost, StaleCall
from driftlab.errors import RequestError, RunError
from driftlab.platform.core.records import Reply
from driftlab.platform.sim.session import NodeId

A, B = NodeId("device", "a"), NodeId("learner", "b")


class Adder:
    """A node whose replies show which calls it has run."""

    def __init__(self, start=0):
        self.total = start

    def add(self, value):
        self.total += int(np.sum(value))
        return Reply(self.total, {"t": [{"x": [self.total]}]}, np.full(3, self.total))

    def fail(self):
        self.total = -1000
        raise ValueError("broken")

    def refuse(self):
        raise RequestError("too much")


class Refusing:
    def __init__(self):
        raise RequestError("not allowed")


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr("driftlab.actors.node_host.import_class", {"Adder": Adder, "Refusing": Refusing}.__getitem__)
    host = NodeHost({"device": "Adder", "learner": "Adder", "teacher": "Refusing"})
    host.place("s", 0, A, 10)
    host.place("s", 0, B)
    return host


def test_a_call_returns_head_and_payload_separately(host):
    head, payload = host.call("s", 0, 0, A, "add", 5)
    assert head == (15, {"t": [{"x": [15]}]})
    assert payload.tolist() == [15, 15, 15]


def test_a_payload_is_an_argument_of_another_node(host):
    _, payload = host.call("s", 0, 0, A, "add", 5)
    head, _ = host.call("s", 0, 0, B, "add", payload)
    assert head[0] == 45


@pytest.mark.parametrize(
    ("epoch", "step", "node", "session"),
    [(0, 0, A, "s"), (0, 2, A, "s"), (1, 1, A, "s"), (0, 0, NodeId("device", "c"), "s"), (0, 1, A, "other")],
    ids=["repeated", "one lost before", "late epoch", "unknown node", "unknown session"],
)
def test_a_stale_call_is_refused_and_leaves_the_node_unchanged(host, epoch, step, node, session):
    host.call("s", 0, 0, A, "add", 1)
    with pytest.raises(StaleCall):
        host.call(session, epoch, step, node, "add", 100)
    assert host.call("s", 0, 1, A, "add", 1)[0][0] == 12


def test_an_error_of_a_node_is_the_reply_of_all_dependent_calls(host):
    head, payload = host.call("s", 0, 0, A, "fail")
    assert isinstance(head, Failure)
    assert isinstance(head.error, RunError)
    assert str(head.error) == "device a cannot fail: ValueError: broken"
    assert "broken" in head.trace
    assert host.call("s", 0, 1, A, "add", 1)[0] is head
    assert host.call("s", 0, 0, B, "add", payload)[0] is head
    host.place("s", 0, NodeId("device", "late"), payload)
    assert host.call("s", 0, 0, NodeId("device", "late"), "add", 1)[0] is head


def test_a_request_error_keeps_its_class(host):
    head, _ = host.call("s", 0, 0, A, "refuse")
    assert type(head.error) is RequestError
    assert str(head.error) == "too much"


def test_an_error_of_a_constructor_is_the_reply_of_the_first_call(host):
    node = NodeId("teacher", "t")
    host.place("s", 0, node)
    assert str(host.call("s", 0, 0, node, "label")[0].error) == "not allowed"


def test_an_unknown_verb_is_an_error_of_the_node(host):
    assert "cannot dance" in str(host.call("s", 0, 0, A, "dance")[0].error)


def test_a_checkpoint_restores_nodes_and_steps_in_a_new_epoch(host):
    host.call("s", 0, 0, A, "add", 1)
    state = host.checkpoint("s", 0, {A: 1, B: 0})
    host.call("s", 0, 1, A, "add", 100)
    other = NodeHost({})
    other.restore("s", 1, state)
    with pytest.raises(StaleCall):
        other.call("s", 0, 1, A, "add", 1)
    assert other.call("s", 1, 1, A, "add", 1)[0][0] == 12
    assert other.call("s", 1, 0, B, "add", 1)[0][0] == 1


def test_a_checkpoint_is_refused_after_a_lost_call(host):
    with pytest.raises(StaleCall):
        host.checkpoint("s", 0, {A: 1, B: 0})


def test_an_empty_checkpoint_drops_nodes_and_late_placements(host):
    host.restore("s", 1, None)
    with pytest.raises(StaleCall):
        host.place("s", 0, A, 10)
    host.place("s", 1, A, 20)
    assert host.call("s", 1, 0, A, "add", 1)[0][0] == 21


def test_sessions_have_separate_nodes(host):
    host.place("s2", 0, A, 50)
    host.call("s", 0, 0, A, "add", 1)
    assert host.call("s2", 0, 0, A, "add", 1)[0][0] == 51
    host.drop("s2")
    assert host.call("s", 0, 1, A, "add", 1)[0][0] == 12
    with pytest.raises(StaleCall):
        host.call("s2", 0, 1, A, "add", 1)
