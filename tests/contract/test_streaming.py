"""Contract of every streaming member."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from sampling_factory import on_columns, sampled

from driftlab.platform.core.records import Stored, Trained
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameter_faults, parameters
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts, Streaming
from driftlab.platform.streaming.wire.samples import pack

SESSIONS = [
    StreamFacts(fps=2.0, duration_s=40.0),
    StreamFacts(fps=30.0, duration_s=130.0),
    StreamFacts(fps=2.5, duration_s=7.3),
    StreamFacts(fps=0.3, duration_s=100.0),
    StreamFacts(fps=4.0, duration_s=0.2),
]
LATEST = 2000  # plans of one session; more would mean that time does not advance
SEEN = (Seen(), Seen(4, 0.9, 2.0, 1), Seen(4, 0.01, 0.0, 1), Seen(2, None, None, None))
PHIS = ((0.0, 0.1), (0.9,), (), (0.4, 0.5, 1.0))


@dataclasses.dataclass(frozen=True)
class Step:
    """One uplink plan, and the downlink plan for its samples."""

    now_s: float
    sampling: Sampling
    downlink: DownlinkPlan


def trained(score: float | None, skipped: str = "") -> Trained:
    return Trained(8, 5, 100, 10, 1.0, 0.5, score, skipped, 0.1)


def session_of(member: Streaming, session: StreamFacts) -> list[Step]:
    """Return the plans of a session with a server without delay."""
    state, now_s, steps = member.start(session), 0.0, []
    while now_s < session.duration_s and len(steps) < LATEST:
        sampling = member.plan_uplink(state, session, now_s, SEEN[len(steps) % len(SEEN)])
        if sampling is None or sampling.send_s >= session.duration_s:
            break
        count = len(sampling.times_s)
        newest_s = sampling.times_s[-1] if count else now_s
        stored = Stored(count, count, newest_s, newest_s, PHIS[len(steps) % len(PHIS)])
        downlink = member.plan_downlink(state, session, stored, sampling.send_s)
        score = (None, 0.9, 0.2)[len(steps) % 3]
        state = downlink.state if downlink.phase is None else member.learn(downlink.state, trained(score))
        steps.append(Step(now_s, sampling, downlink))
        now_s = sampling.send_s if sampling.next_s is None else sampling.next_s
    return steps


@cache
def played(name: str, session: StreamFacts) -> list[Step]:
    """Return the plans of a session, computed once for all tests."""
    return session_of(Member("streaming", name).make(), session)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Sample the sessions of every member."""
    if metafunc.cls is not TestEveryStreaming:
        return
    names = sorted(FAMILIES["streaming"])
    if "session" not in metafunc.fixturenames:
        metafunc.parametrize("name", names)
        return
    cases = [(name, one) for row, name in enumerate(names) for one in sampled(metafunc.function, row, SESSIONS)]
    metafunc.parametrize(("name", "session"), cases, ids=str)


class TestEveryStreaming:
    @pytest.fixture
    def member(self, name) -> Streaming:
        made: Streaming = Member("streaming", name).make()
        return made

    def test_its_class_attributes_are_valid(self, member):
        assert isinstance(member.feeds_learner, bool)
        assert isinstance(member.free, bool)
        assert member.label_tracking in (None, "chained", "direct")
        assert member.learner_site in ("server", "device")
        assert member.training_runs in ("exclusive", "concurrent")
        for flag in (member.needs_labels, member.uses_statistics):
            assert isinstance(flag, bool)
        assert not member.needs_labels or member.learner_site == "server"  # a device has no teacher for them

    def test_its_docstrings_have_one_line(self, name):
        cls = member_class("streaming", name)
        assert one_line(cls.__doc__)
        assert one_line(importlib.import_module(cls.__module__).__doc__)

    def test_it_imports_no_random_numbers_and_no_clock(self, name):
        assert imported(FAMILIES["streaming"][name]) & {"random", "time", "datetime", "secrets", "os"} == set()

    @on_columns(2)
    def test_plans_are_pure_and_deterministic(self, member, session):
        assert session_of(member, session) == session_of(copy.deepcopy(member), session)

    @on_columns(2)
    def test_plans_do_not_change_the_state(self, member, session):
        state = member.start(session)
        for number in range(5):
            kept = pickle.dumps(state)
            member.plan_uplink(state, session, 0.0, SEEN[number % len(SEEN)])
            stored = Stored(3, 3, 0.0, 0.0, PHIS[number % len(PHIS)])
            downlink = member.plan_downlink(state, session, stored, 1.0)
            after = member.learn(downlink.state, trained(0.5))
            assert pickle.dumps(state) == kept
            state = after

    @on_columns(2)
    def test_states_survive_a_checkpoint(self, name, session):
        for step in played(name, session)[:10]:
            assert pickle.loads(pickle.dumps(step.downlink)) == step.downlink

    @on_columns(2)
    def test_samples_are_frames_of_the_stream_seen_since_the_last_plan(self, name, session):
        for step in played(name, session):
            times_s = step.sampling.times_s
            assert list(times_s) == sorted(set(times_s))
            for time_s in times_s:
                assert time_s == round(time_s * session.fps) / session.fps
                assert 0 <= time_s < session.duration_s

    @on_columns(2)
    def test_no_frame_is_sent_before_its_capture(self, name, member, session):
        for step in [] if member.free else played(name, session):  # a bound may use later frames
            assert all(time_s <= step.sampling.send_s + 1e-6 for time_s in step.sampling.times_s)

    @on_columns(2)
    def test_every_plan_advances_the_time(self, name, session):
        steps = played(name, session)
        assert len(steps) < LATEST
        for step in steps:
            again_s = step.sampling.send_s if step.sampling.next_s is None else step.sampling.next_s
            assert step.now_s <= step.sampling.send_s <= again_s
            assert again_s > step.now_s

    def test_its_codec_exists(self, name):
        frames = np.zeros((2, 32, 48, 3), np.uint8)
        for codec in {step.sampling.codec for session in SESSIONS for step in played(name, session)}:
            assert pack(frames, codec).net_bytes > 0

    def test_phases_occur_exactly_if_it_feeds_a_learner(self, name, member):
        """A long session has phases, or no session has."""
        brought = [any(step.downlink.phase is not None for step in played(name, one)) for one in SESSIONS]
        assert brought[1] if member.feeds_learner else not any(brought)

    def test_impossible_numbers_are_refused(self, name):
        cls = member_class("streaming", name)
        for key, (kind, default) in parameters(cls).items():
            if kind not in (int, float) or key in ("target", "threshold"):
                continue
            for wrong in (-1, 0) if kind is int else (-1.0, float("nan")):
                faults = parameter_faults(cls, {key: wrong})
                assert any(key in fault and str(wrong) in fault for fault in faults), (key, wrong, default)


def one_line(text: str | None) -> bool:
    first, *rest = inspect.cleandoc(text or "").splitlines() or [""]
    return 10 < len(first) <= 120 and first.endswith((".", ":")) and (not rest or rest[0] == "")


def imported(target: str) -> set[str]:
    tree = ast.parse(inspect.getsource(importlib.import_module(target.partition(":")[0])))
    found: set[Any] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found
