"""A rack runs every node's calls in order or not at all, and tells lost calls from wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.actors.rack import Failure, OutOfStep, Rack
from driftlab.errors import RequestError, RunError
from driftlab.platform.core.records import Reply
from driftlab.platform.sim.session import NodeId

A, B = NodeId("device", "a"), NodeId("learner", "b")


class Adder:
    """A node whose answers show which calls it has run."""

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


class Picky:
    def __init__(self):
        raise RequestError("not wanted")


@pytest.fixture
def rack(monkeypatch):
    monkeypatch.setattr("driftlab.actors.rack.import_class", {"Adder": Adder, "Picky": Picky}.__getitem__)
    rack = Rack({"device": "Adder", "learner": "Adder", "teacher": "Picky"})
    rack.place("s", 0, A, 10)
    rack.place("s", 0, B)
    return rack


def test_head_and_payload_come_apart(rack):
    head, payload = rack.call("s", 0, 0, A, "add", 5)
    assert head == (15, {"t": [{"x": [15]}]})
    assert payload.tolist() == [15, 15, 15]


def test_a_payload_reaches_another_node(rack):
    _, payload = rack.call("s", 0, 0, A, "add", 5)
    head, _ = rack.call("s", 0, 0, B, "add", payload)
    assert head[0] == 45


@pytest.mark.parametrize(
    ("epoch", "step", "node", "session"),
    [(0, 0, A, "s"), (0, 2, A, "s"), (1, 1, A, "s"), (0, 0, NodeId("device", "c"), "s"), (0, 1, A, "other")],
    ids=["repeated", "one lost before", "late epoch", "unknown node", "unknown session"],
)
def test_a_call_out_of_step_is_refused_and_changes_nothing(rack, epoch, step, node, session):
    rack.call("s", 0, 0, A, "add", 1)
    with pytest.raises(OutOfStep):
        rack.call(session, epoch, step, node, "add", 100)
    assert rack.call("s", 0, 1, A, "add", 1)[0][0] == 12


def test_an_error_of_a_node_answers_this_call_and_all_that_build_on_it(rack):
    head, payload = rack.call("s", 0, 0, A, "fail")
    assert isinstance(head, Failure)
    assert isinstance(head.error, RunError)
    assert str(head.error) == "device a cannot fail: ValueError: broken"
    assert "broken" in head.trace
    assert rack.call("s", 0, 1, A, "add", 1)[0] is head
    assert rack.call("s", 0, 0, B, "add", payload)[0] is head
    rack.place("s", 0, NodeId("device", "late"), payload)
    assert rack.call("s", 0, 0, NodeId("device", "late"), "add", 1)[0] is head


def test_a_refusal_keeps_its_class(rack):
    head, _ = rack.call("s", 0, 0, A, "refuse")
    assert type(head.error) is RequestError
    assert str(head.error) == "too much"


def test_an_error_of_a_constructor_answers_the_first_call(rack):
    node = NodeId("teacher", "t")
    rack.place("s", 0, node)
    assert str(rack.call("s", 0, 0, node, "label")[0].error) == "not wanted"


def test_an_unknown_verb_is_the_callers_error(rack):
    assert "cannot dance" in str(rack.call("s", 0, 0, A, "dance")[0].error)


def test_a_checkpoint_brings_back_nodes_and_steps_in_a_new_epoch(rack):
    rack.call("s", 0, 0, A, "add", 1)
    state = rack.checkpoint("s", 0, {A: 1, B: 0})
    rack.call("s", 0, 1, A, "add", 100)
    other = Rack({})
    other.restore("s", 1, state)
    with pytest.raises(OutOfStep):
        other.call("s", 0, 1, A, "add", 1)
    assert other.call("s", 1, 1, A, "add", 1)[0][0] == 12
    assert other.call("s", 1, 0, B, "add", 1)[0][0] == 1


def test_a_checkpoint_is_refused_when_a_call_was_lost(rack):
    with pytest.raises(OutOfStep):
        rack.checkpoint("s", 0, {A: 1, B: 0})


def test_restoring_nothing_forgets_the_nodes_and_refuses_late_placements(rack):
    rack.restore("s", 1, None)
    with pytest.raises(OutOfStep):
        rack.place("s", 0, A, 10)
    rack.place("s", 1, A, 20)
    assert rack.call("s", 1, 0, A, "add", 1)[0][0] == 21


def test_sessions_do_not_meet(rack):
    rack.place("s2", 0, A, 50)
    rack.call("s", 0, 0, A, "add", 1)
    assert rack.call("s2", 0, 0, A, "add", 1)[0][0] == 51
    rack.drop("s2")
    assert rack.call("s", 0, 1, A, "add", 1)[0][0] == 12
    with pytest.raises(OutOfStep):
        rack.call("s2", 0, 1, A, "add", 1)
