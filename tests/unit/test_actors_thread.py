"""Calls that may block: whoever waits for one can look around, give up, and leave."""

from __future__ import annotations

import threading

import pytest

from driftlab.actors.thread import RayThread


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def test_calls_run_in_turn_in_one_other_thread_and_answer_or_raise():
    thread = RayThread(lambda: None)
    names = [thread.run(lambda: threading.current_thread().name) for _ in range(2)]
    assert names == ["ray", "ray"]
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="their own"):
        thread.run(lambda: (_ for _ in ()).throw(TimeoutError("their own")))
    assert thread.end(10)


def test_a_call_that_takes_too_long_is_given_up_and_the_thread_with_it(gate):
    thread = RayThread(lambda: None)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        thread.run(gate.wait, 0.1)
    assert thread.busy
    assert not thread.end(0.1)
    assert any(one.name == "ray, abandoned" for one in threading.enumerate())


def test_who_waits_looks_whether_it_still_makes_sense(gate):
    def look():
        raise RuntimeError("no longer")

    thread = RayThread(look)
    with pytest.raises(RuntimeError, match="no longer"):
        thread.run(gate.wait)
