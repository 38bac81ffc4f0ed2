"""Lost processes: the session recovers, and all replies are the same."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import ray_fakes

from driftlab.actors import faults
from driftlab.actors import session as sessions
from driftlab.errors import RunError
from driftlab.platform.sim.session import NodeId

DEVICE, LEARNER = NodeId("device", "d"), NodeId("learner", "t")
KILLS = 10


def test_ten_kills_do_not_change_replies(session, inline_replies):
    with faults.kill_repeatedly(KILLS, 0.3, seed=2) as killed:
        replies = ray_fakes.program(session, 2, 300, checkpoint_every=30, until=lambda: len(killed) == KILLS)
    assert len(killed) == KILLS
    assert replies == inline_replies(2, len(replies))


def kill(session, node):
    os.kill(session.result(session.call(node, "pid")).facts, signal.SIGKILL)


def test_a_kill_repeats_only_the_calls_since_the_last_checkpoint(session, tmp_path):
    trace = tmp_path / "trace"
    session.place(DEVICE, "d")
    for number in range(10):
        session.call(DEVICE, "count", trace, number)
    session.checkpoint()
    settle(session)
    kill(session, DEVICE)
    after = [session.call(DEVICE, "count", trace, number) for number in range(10, 13)]
    digests = [session.result(job).facts for job in after]
    assert len(set(digests)) == 3
    assert [int(line) for line in trace.read_text().split()] == [*range(10), *range(10, 13)]


def test_payloads_from_before_a_checkpoint_can_be_used_after_it(session):
    """One job is used before and after the checkpoint and released in between: only the log refers to it."""
    session.place(DEVICE, "d")
    session.place(LEARNER, "t")
    old = session.call(DEVICE, "big", 1)
    session.checkpoint()
    settle(session)
    first = session.call(LEARNER, "work", 1, old)
    facts = session.result(first).facts
    del old
    kill(session, LEARNER)
    assert session.result(session.call(LEARNER, "work", 2)).facts
    assert session.result(first).facts == facts


def test_automatic_checkpoints_limit_the_calls_to_repeat(session, monkeypatch):
    monkeypatch.setattr(sessions, "CHECKPOINT_CALLS", 20)
    monkeypatch.setattr(sessions, "SETTLE_CALLS", 1)
    session._due = 20
    session.place(DEVICE, "d")
    jobs = [session.call(DEVICE, "work", number) for number in range(60)]
    for job in jobs:
        session.result(job)
    session.result(session.call(DEVICE, "work", 60))
    assert session._cut.index > 0


def test_a_node_that_cannot_be_pickled_is_repeated_from_the_start(backend, session, monkeypatch):
    node = NodeId("builder", "stubborn")
    session.place(node, "stubborn")
    first = session.result(session.call(node, "stiffen", 1)).facts
    session.checkpoint()
    kill(session, node)
    again = session.call(node, "work", 2)
    assert session.result(again).facts != first
    assert session._cut.index == 0


def test_a_call_that_always_kills_its_process_fails_on_a_separate_actor(backend, session, inline_replies, tmp_path):
    """Other sessions share its actors at first, recover a few times, and end without an error."""
    trace = tmp_path / "trace"
    session.place(DEVICE, "d")
    replies = []

    def innocent():
        other = backend.open("innocent")
        replies.append(ray_fakes.program(other, 5, 200))
        other.close()

    thread = threading.Thread(target=innocent)
    thread.start()
    with pytest.raises(
        RunError, match=r"device d cannot die: its process, or one it needs, was lost \d times in a row"
    ):
        session.result(session.call(DEVICE, "die", trace))
    thread.join(120)
    assert replies == [inline_replies(5, 200)]
    killed = trace.read_text().split()
    assert len(killed) == sessions.MAX_RECOVERIES + 1
    assert len(set(killed[: sessions.MAX_SHARED_RECOVERIES + 1])) == 1
    assert set(killed[sessions.MAX_SHARED_RECOVERIES + 1 :]).isdisjoint(killed[: sessions.MAX_SHARED_RECOVERIES + 1])


def test_a_call_that_kills_its_process_once_is_repeated(session, tmp_path):
    session.place(DEVICE, "d")
    assert session.result(session.call(DEVICE, "die_once", tmp_path / "marker", 1)).facts


def test_a_call_with_an_unhashable_argument_is_repeated(session):
    """Rows, the argument of a recorder, are unhashable."""
    session.place(DEVICE, "d")
    first = session.call(DEVICE, "work", {"rows": [1]})
    facts = session.result(first).facts
    kill(session, DEVICE)
    session.result(session.call(DEVICE, "work", 2))
    assert session.result(first).facts == facts


def settle(session):
    """Wait until the requested checkpoint is complete."""
    deadline = time.monotonic() + 60
    while session._pending is not None and time.monotonic() < deadline:
        session._settle(session._pending)
        time.sleep(0.05)
    assert session._pending is None
