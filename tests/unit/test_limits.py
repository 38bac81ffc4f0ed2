"""Members that never return: a failed cell or run whose error names the member and the limit."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time

import pytest

from driftlab.errors import RunError
from driftlab.platform.core import limits
from driftlab.platform.core.limits import TookTooLong, limited, time_limit
from driftlab.platform.core.registry import Member
from driftlab.platform.lab.seal import run

pytestmark = pytest.mark.waits

OWN = """
import time
from dataclasses import dataclass

from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.scaling.fixed import Fixed
from driftlab.platform.scheduling.uniform import Uniform
from driftlab.platform.streaming.one_time import OneTime


def endless():
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


@dataclass(frozen=True)
class Plans(OneTime):
    verb: str = ""
    def start(self, session):
        return endless() if self.verb == "start" else super().start(session)
    def plan_uplink(self, state, session, now_s, seen):
        return endless() if self.verb == "plan_uplink" else super().plan_uplink(state, session, now_s, seen)
    def plan_downlink(self, state, session, stored, now_s):
        return endless() if self.verb == "plan_downlink" else super().plan_downlink(state, session, stored, now_s)
    def learn(self, state, trained):
        return endless() if self.verb == "learn" else super().learn(state, trained)


@dataclass(frozen=True)
class Sizes(Fixed):
    verb: str = ""
    def build(self, model, data):
        return endless() if self.verb == "build" else super().build(model, data)
    def select(self, family, budget):
        return endless() if self.verb == "select" else super().select(family, budget)
    def restore(self, model, arrays, size):
        return endless() if self.verb == "restore" else super().restore(model, arrays, size)
    def profile(self, family, size):
        return endless() if self.verb == "profile" else super().profile(family, size)


@dataclass(frozen=True)
class Adapts(Distill):
    verb: str = ""
    @property
    def has_source_summary(self):
        return self.verb == "summarise_source"
    def summarise_source(self, model, data):
        return endless() if self.verb == "summarise_source" else super().summarise_source(model, data)
    def prepare(self, model, pack, *, go_on=None):
        return endless() if self.verb == "prepare" else super().prepare(model, pack, go_on=go_on)


@dataclass(frozen=True)
class Shares(Uniform):
    verb: str = ""
    def allocate(self, window):
        return endless() if self.verb == "allocate" else super().allocate(window)
"""
IN_A_CELL = [
    *(("streaming", "Plans", verb) for verb in ("start", "plan_uplink", "plan_downlink", "learn")),
    ("scaling", "Sizes", "select"),
    ("scheduling", "Shares", "allocate"),
    ("adaptation", "Adapts", "prepare"),
]
BEFORE_ALL_CELLS = [
    *(("scaling", "Sizes", verb) for verb in ("build", "restore", "profile")),
    ("adaptation", "Adapts", "summarise_source"),
]
LIMIT_S = 2.0  # any call that ends does so sooner, on a busy machine too


SMALL = {
    "name": "endless",
    "systems": ["no_custom"],
    "workloads": [{"name": "streets/running", "duration_s": 6, "fps": 1, "height": 32, "width": 48}],
    "bounds": False,
    "snapshots": 0,
    "window_s": 3,
    "student": {"network": "half", "pretrain_steps": 0},
}


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Import the modules of a first call, which takes longer than the limit on a busy host."""
    run(SMALL, out=tmp_path_factory.mktemp("warm") / "run")


@pytest.fixture
def document(tmp_path):
    """Two systems, the first of which has a member that does not return from a verb."""
    (tmp_path / "own.py").write_text(OWN)

    def made(family, name, verb):
        streaming = {"name": "one_time", "sample_s": 2, "iterations": 1}
        mine = {"name": "mine", "base": "one_time", "streaming": streaming}
        own = {**(streaming if family == "streaming" else {}), "name": f"{tmp_path}/own.py:{name}", "verb": verb}
        return {**SMALL, "systems": [{**mine, family: own}, "no_custom"], "limits": {"member_s": LIMIT_S}}

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "verb"), IN_A_CELL)
def test_a_member_that_does_not_return_fails_its_cell_only(document, tmp_path, family, name, verb):
    outcome = run(document(family, name, verb), out=tmp_path / "run")
    ((cell, reason),) = outcome.failed
    assert (cell, outcome.done) == ("mine/running/one/seed-0", 1)
    assert f"own.py:{name}" in reason and f"{verb} did not return within 2 s" in reason
    assert "limits.member_s" in reason


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "verb"), BEFORE_ALL_CELLS)
def test_a_family_that_is_never_built_fails_the_run(document, tmp_path, monkeypatch, family, name, verb):
    monkeypatch.setattr("driftlab.platform.sim.nodes.networks.BUILD_CALLS", 1)
    with pytest.raises(RunError, match=rf"own.py:{name}.*{verb}\w* did not return within 2 s"):
        run(document(family, name, verb), out=tmp_path / "run")


def test_a_limit_costs_microseconds_and_keeps_all_results():
    member = Member("streaming", "ams", (("interval_s", 5.0),))
    plain, watched = member.make(), limited(member, 600.0)
    attributes = (watched.interval_s, watched.label_tracking, watched.uses_statistics)
    assert attributes == (5.0, plain.label_tracking, plain.uses_statistics)
    assert pickle.loads(pickle.dumps(watched)).interval_s == 5.0
    session = object()
    calls = 2000
    watched.learn(session, None)
    begun_s = time.process_time()
    for _ in range(calls):
        watched.learn(session, None)
    assert (time.process_time() - begun_s) / calls < 50e-6  # decisions take a thousand


def test_a_forked_process_has_a_separate_watchdog():
    with time_limit(60):
        pass
    if not (pid := os.fork()):
        code = 1
        try:
            with time_limit(0.2):
                while True:
                    time.sleep(0.01)
        except TookTooLong:
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not found[0]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert found[0] and os.waitstatus_to_exitcode(found[1]) == 0


def test_a_thread_with_the_number_of_an_ended_one_is_not_interrupted():
    watch, raised = limits._watch(), list[bool]()
    first = threading.Thread(target=lambda: watch.begin(watch.number(), time.monotonic() + 0.1))
    first.start()
    first.join()

    def wait() -> None:
        try:
            for _ in range(30):
                time.sleep(0.01)
        except TookTooLong:
            raised.append(True)

    second = threading.Thread(target=wait)
    second.start()
    second.join()
    if second.ident != first.ident:
        pytest.skip("the second thread has another number")
    assert raised == []
