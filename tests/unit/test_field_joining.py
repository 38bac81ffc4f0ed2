"""Learners of several sessions as one batch: each result is that of a worker with one round at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from served_factory import ASKED

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.field import joining, rounds
from driftlab.platform.field.joining import Meeting
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.rounds import AT_ONCE, RoundRequest, RoundsWorker, rounds_at_once
from driftlab.platform.field.together import adapt_together
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.server_metrics import ServerMetrics
from driftlab.serve_apps.sessions import SessionWorkerThread

WAIT_S = 60  # for threads that must not hang


def upload(folder, number, seed):
    """Store an upload as the server does."""
    for name in (rounds.UPLOADS, rounds.RESULTS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng([seed, number]).integers(0, 255, (2, 32, 48, 3)).astype(np.uint8)
    sampling = Sampling((number - 0.5, number - 0.25), float(number), codec="h264")
    body = SampleMessage(number, float(number), sampling, pack(images, "h264").payload).encode(4.0)
    (folder / rounds.UPLOADS / f"{number:08d}").write_bytes(body)


def asked(seed, network="half"):
    system = {**ASKED["system"], "adaptation": {"name": "distill", "iterations": 15}}
    student = {**ASKED["student"], "network": network}
    return parse_session_request({**ASKED, "system": system, "seed": seed, "student": student})


def run_round(worker, folder, requests, number):
    """Run a round of several sessions at the same time; return the faults."""
    sent = []
    for name, request in enumerate(requests):
        upload(folder / str(name), number, name)
        sent.append(RoundRequest(folder / str(name), request, number, float(number), number - 1))
    meeting = worker._meeting or Meeting()
    with ThreadPoolExecutor(len(requests)) as pool:
        with meeting._turn:
            replies = [pool.submit(worker.work, one) for one in sent]
            wait_until(lambda: not worker._meeting or meeting._active == len(sent))
        return [reply.result(WAIT_S).fault for reply in replies]


def wait_until(holds):
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def run_rounds(worker, folder, requests, count=2):
    """Run several rounds without a fault; return weights and rows of each session."""
    for number in range(1, count + 1):
        assert run_round(worker, folder, requests, number) == [""] * len(requests)
    return [session_of(worker, folder / str(name)) for name in range(len(requests))]


def session_of(worker, folder):
    session = worker._sessions[folder]
    (learner,) = [node for name, node in session._session.nodes.items() if name.kind == "learner"]
    rows = [{**one.row, "score": one.score} for one in session.progress.rounds]
    return vector.read(learner._model), rows, learner


@pytest.fixture
def joined(monkeypatch):
    """Note how many learners train as one batch."""
    sizes = []

    def noted(members, *given):
        sizes.append(len(members))
        return adapt_together(members, *given)

    monkeypatch.setattr(rounds, "_new_meeting", lambda: Meeting(noted))
    return sizes


def worker_of(at_once):
    return RoundsWorker(at_once=at_once)


@pytest.mark.slow
def test_sessions_end_as_with_a_worker_that_runs_one_at_a_time(tmp_path, joined):
    requests = [asked(seed) for seed in range(3)]
    workers = [worker_of(1), worker_of(3)]
    alone, together = (run_rounds(worker, tmp_path / str(number), requests, 3) for number, worker in enumerate(workers))
    assert joined == [3, 3]  # the first phase of each is audited, so it runs alone
    for (theirs, there, _), (ours, here, learner) in zip(alone, together, strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)
        same = ("samples", "iterations", "sent_values", "values")
        assert [{name: row[name] for name in same if name in row} for row in here] == [
            {name: row[name] for name in same if name in row} for row in there
        ]
        assert np.allclose([row["loss_last"] for row in here], [row["loss_last"] for row in there], rtol=1e-3)
        assert type(learner._adaptation).__name__ == "_Limited"  # its own, which can be stored
    for worker in workers:
        worker.close()


@pytest.mark.slow
def test_sessions_with_other_networks_are_not_joined(tmp_path, joined):
    worker = worker_of(3)
    run_rounds(worker, tmp_path, [asked(0), asked(1, "tiny"), asked(2)])
    assert joined == [2]
    worker.close()


@pytest.mark.slow
def test_a_session_that_fails_does_not_hold_the_others(tmp_path, joined, monkeypatch):
    worker = worker_of(3)
    requests = [asked(seed) for seed in range(3)]
    run_rounds(worker, tmp_path, requests, count=1)
    decode = rounds.SessionRounds._decode

    def failing(session, message):
        if session.folder.name == "1":
            raise OSError("no space left")
        return decode(session, message)

    monkeypatch.setattr(rounds.SessionRounds, "_decode", failing)
    assert run_round(worker, tmp_path, requests, 2) == ["", "OSError: no space left", ""]
    assert joined == [2]
    worker.close()


def learners(count):
    """Arguments of `adapt` for small networks."""
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
        batch = Batch(images, rng.integers(0, 4, (3, 16, 16), dtype=np.uint8), rng)
        model, member = build("half", 4, seed=seed), Distill(iterations=2)
        found.append((member, model, member.prepare(model), batch, Phase()))
    return found


def meet(meeting, works):
    """Run each work in a thread that takes part in a meeting, once all take part."""

    def run(work):
        with meeting.taking_part():
            return work()

    with ThreadPoolExecutor(len(works)) as pool:
        with meeting._turn:
            ended = [pool.submit(run, work) for work in works]
            wait_until(lambda: meeting._active == len(works))
        return [one.result(WAIT_S) for one in ended]


@pytest.mark.slow
def test_a_batch_that_fails_is_trained_one_after_another_with_the_same_draws(caplog):
    def broken(members, models, states, batches, phases):
        for batch in batches:
            batch.rng.integers(10, size=7)
        raise RuntimeError("no batching rule")

    given, meeting = learners(2), Meeting(broken)
    results = meet(meeting, [lambda one=one: meeting.adapt(*one) for one in given])
    expected = [member.adapt(*others) for member, *others in learners(2)]
    assert [one.losses for one in results] == [one.losses for one in expected]
    assert "2 learners cannot train as one batch, each trains alone" in caplog.text


@pytest.mark.slow
def test_a_time_limit_inside_a_batch_holds_no_other_round():
    class Over(BaseException):
        """As the time limit of a member."""

    def over(*given):
        raise Over

    given, meeting, ended = learners(2), Meeting(over), []

    def work(one):
        try:
            ended.append(meeting.adapt(*one).iterations)
        except Over:
            ended.append("over")

    meet(meeting, [lambda one=one: work(one) for one in given])
    assert sorted(map(str, ended)) == ["2", "over"]


@pytest.mark.slow
def test_a_round_that_ends_lets_the_others_train():
    given, meeting = learners(3), Meeting()

    def end():
        raise ValueError("a fault")

    def work(one):
        return meeting.adapt(*one).iterations

    with pytest.raises(ValueError, match="a fault"):
        meet(meeting, [*(lambda one=one: work(one) for one in given), end])
    assert meet(meeting, [lambda one=one: work(one) for one in learners(2)]) == [2, 2]


def test_one_round_computes_at_a_time():
    meeting, inside, most = Meeting(), [], []

    def work():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()

    meet(meeting, [work] * 4)
    assert most == [1] * 4


@pytest.mark.slow
@pytest.mark.parametrize("limit_s", [0.1, 20.0])
def test_a_learner_trains_alone_if_others_do_not_train_soon(monkeypatch, limit_s):
    monkeypatch.setattr(joining, "WAIT_S", limit_s)
    (given,), meeting, ended, until_s = learners(1), Meeting(), threading.Event(), time.monotonic() + 2.0

    def other():
        """Take part without training, until the learner has trained or two seconds have passed."""
        while not ended.is_set() and time.monotonic() < until_s:
            meeting._turn.wait(0.01)
        return ended.is_set()

    def work():
        iterations = meeting.adapt(*given).iterations
        ended.set()
        return iterations

    assert meet(meeting, [work, other]) == [2, limit_s < 2]


def test_a_round_alone_does_not_wait(monkeypatch):
    monkeypatch.setattr(joining, "POLL_S", WAIT_S)
    (given,), meeting = learners(1), Meeting(lambda *given: pytest.fail("one learner is no batch"))
    with meeting.taking_part():
        assert meeting.adapt(*given).iterations == 2


def test_only_a_worker_on_a_gpu_runs_several_rounds():
    assert (rounds_at_once("cpu"), rounds_at_once("cuda"), rounds_at_once("cuda:1")) == (1, AT_ONCE, AT_ONCE)
    worker = RoundsWorker()
    assert (worker.at_once, worker._meeting) == (1, None)
    worker.close()


class FakeSession:
    """A session with one round of work, which waits until enough rounds run."""

    weighs, since_upload_s = False, 0.0

    def __init__(self, number, barrier):
        self.waits_since_s, self.has_work, self._barrier, self.thread = float(number), True, barrier, ""

    def work(self):
        self.has_work, self.thread = False, threading.current_thread().name
        self._barrier.wait(WAIT_S)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_server_gives_a_worker_as_many_rounds_as_it_runs_at_once(at_once):
    class Worker:
        """Runs no rounds."""

    Worker.at_once = at_once
    barrier = threading.Barrier(at_once)
    given = {str(number): FakeSession(number, barrier) for number in range(3)}
    runner = SessionWorkerThread(Worker(), ServerMetrics(None))
    for name, session in given.items():
        runner.add(name, session)
    wait_until(lambda: not any(session.has_work for session in given.values()))
    runner.stop()
    threads = {session.thread for session in given.values()}
    assert threads == {"rounds"} if at_once == 1 else len(threads) == 3


class TwoRounds(FakeSession):
    """A session with another round of work from the beginning of its first one."""

    def __init__(self):
        super().__init__(0, None)
        self.rounds = self.most = self.inside = 0

    def work(self):
        self.inside += 1
        self.most, self.rounds = max(self.most, self.inside), self.rounds + 1
        time.sleep(0.02)
        self.has_work = self.rounds < 2
        self.inside -= 1


def test_a_session_has_one_round_at_a_time():
    class Worker:
        """Runs no rounds."""

        at_once = 3

    session, runner = TwoRounds(), SessionWorkerThread(Worker(), ServerMetrics(None))
    runner.add("one", session)
    wait_until(lambda: not session.has_work)
    runner.stop()
    assert (session.most, session.rounds) == (1, 2)
