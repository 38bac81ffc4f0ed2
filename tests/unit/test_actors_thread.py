"""The thread for blocking calls: a waiting caller can check for errors, time out, and end the thread."""

from __future__ import annotations

import threading

import pytest

from driftlab.actors.thread import RayThread


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def test_calls_run_in_one_other_thread_and_return_or_raise():
    thread = RayThread(lambda: None)
    names = [thread.run(lambda: threading.current_thread().name) for _ in range(2)]
    assert names == ["ray", "ray"]
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="of the call"):
        thread.run(lambda: (_ for _ in ()).throw(TimeoutError("of the call")))
    assert thread.end(10)


def test_a_call_that_takes_too_long_times_out_and_its_thread_is_abandoned(gate):
    thread = RayThread(lambda: None)
    with pytest.raises(TimeoutError, match=r"no reply within 0\.1 s"):
        thread.run(gate.wait, 0.1)
    assert thread.busy
    assert not thread.end(0.1)
    assert any(other.name == "ray, abandoned" for other in threading.enumerate())


def test_a_waiting_caller_receives_the_error_of_the_check(gate):
    def check():
        raise RuntimeError("Ray has ended")

    thread = RayThread(check)
    with pytest.raises(RuntimeError, match="Ray has ended"):
        thread.run(gate.wait)
