"""A hosted session: the lab's rounds on uploads as they arrive, and nothing that was acknowledged is lost."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
from served_factory import ASKED, TOKEN

from driftlab.errors import WireError
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field import rounds
from driftlab.platform.field.messages import SampleMessage, decode_results, decode_samples
from driftlab.platform.field.opening import dump_weights, load_weights
from driftlab.platform.field.request import read_asked
from driftlab.platform.field.rounds import RoundRequest, RoundsWorker
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps import hosting
from driftlab.serve_apps.hosting import Busy, HostedSession
from driftlab.serve_apps.sessions import Full, Hub, Limits

FPS = 4.0
TRACKING = {"name": "remote_tracking", "codec": "h264"}


def upload(number, codec="h264"):
    images = rng_for(0, "upload", number).integers(0, 255, (2, 32, 48, 3)).astype(np.uint8)
    sampling = Sampling((number - 0.5, number - 0.25), float(number), codec=codec)
    return SampleMessage(number, float(number), sampling, pack(images, codec).payload).encode(FPS)


def payloads(session):
    return [one.payload for one in decode_results(session.results(0), FPS)]


@pytest.fixture
def session(tmp_path):
    return HostedSession(tmp_path, read_asked(ASKED))


@pytest.mark.slow
def test_a_round_takes_every_upload_that_waits(session):
    assert not session.has_work
    assert [session.upload(upload(number)) for number in (1, 2)] == [1, 2]
    session.work()
    (one,) = session.history()
    assert (one["number"], one["row"]["uploads"], one["row"]["samples"]) == (1, 2, 4)
    assert not session.has_work
    assert session.status()["version"] == 1


@pytest.mark.slow
def test_an_upload_again_is_acknowledged_and_not_used_again(session):
    session.upload(upload(1))
    assert session.upload(upload(1)) == 1
    session.work()
    assert session.upload(upload(1)) == 1
    assert not session.has_work
    with pytest.raises(WireError):
        session.upload(upload(3))


@pytest.mark.slow
def test_a_full_queue_refuses(session):
    for number in range(1, hosting.MOST_WAITING + 1):
        session.upload(upload(number))
    with pytest.raises(Busy):
        session.upload(upload(hosting.MOST_WAITING + 1))


def test_another_codec_is_refused(session):
    with pytest.raises(WireError):
        session.upload(upload(1, codec="png"))


@pytest.mark.slow
def test_the_network_of_the_device_is_one_of_its_family(session):
    message = decode_samples(upload(1), FPS)
    assert message.runs is None
    with pytest.raises(WireError):
        session.upload(replace(message, runs=1).encode(FPS))
    assert session.upload(replace(message, runs=0).encode(FPS)) == 1
    session.work()
    assert (session.app.runs, session.status()["version"]) == (0, 1)


def test_weights_read_back_with_their_shapes():
    weights = {"scalar": np.array(3.0), "turned": np.arange(6.0).reshape(2, 3).T}
    read = load_weights(dump_weights(weights))
    assert {name: one.shape for name, one in read.items()} == {"scalar": (), "turned": (3, 2)}
    assert (read["turned"] == weights["turned"]).all()


@pytest.mark.slow
def test_a_damaged_upload_is_used_up_and_trains_nothing(session):
    session.upload(upload(1)[:-3])
    session.work()
    assert (session.fault, session.history(), session.has_work) == ("", [], False)
    session.upload(upload(2))
    session.work()
    assert session.status()["version"] == 1


@pytest.mark.slow
def test_a_session_goes_on_after_its_process_ended(session, tmp_path):
    session.upload(upload(1))
    session.work()
    session.upload(upload(2))  # acknowledged, not used yet
    sent = session.results(0)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    again = HostedSession(copy, read_asked(ASKED))
    assert again.results(0) == sent
    assert again.has_work
    again.work()
    session.work()
    assert payloads(again) == payloads(session)  # the same update as without the end
    assert again.status()["version"] == 2
    assert list((copy / "uploads").iterdir()) == []


@pytest.mark.slow
def test_a_resync_brings_every_weight(session):
    session.upload(upload(1))
    session.work()
    session.ask_all()
    session.work()
    first, second = decode_results(session.results(0), FPS)
    assert len(second.payload) > 3 * len(first.payload)
    assert session.status()["version"] == 2


def test_no_mutated_upload_breaks_a_session(session):
    body, rng = upload(1), rng_for(0, "mutations")
    for _ in range(300):
        data = bytearray(body)
        for place in rng.integers(len(data), size=2):
            data[place] = rng.integers(256)
        with contextlib.suppress(WireError, Busy):
            session.upload(bytes(data))
        if session.has_work:
            session.work()
    assert session.fault == ""


def test_labels_come_back_where_the_device_tracks(tmp_path):
    asked = read_asked({**ASKED, "system": {"name": "remote_tracking", "streaming": TRACKING}})
    session = HostedSession(tmp_path, asked)
    session.upload(upload(1))
    session.work()
    (one,) = decode_results(session.results(0), FPS)
    assert (one.kind, one.captured_s, session.status()["version"]) == ("labels", 0.75, 0)
    assert session.history()[0]["row"] == {}


@pytest.mark.slow
def test_results_are_dropped_in_order(session, monkeypatch):
    for module in (hosting, rounds):
        monkeypatch.setattr(module, "KEPT_RESULTS", 2)
    for number in (1, 2, 3):
        session.upload(upload(number))
        session.work()
    assert session.results(0) is None
    assert len(list(decode_results(session.results(1), FPS))) == 2


def test_a_hub_opens_its_sessions_again(tmp_path):
    hub = Hub(tmp_path, TOKEN)
    name, token = hub.open(read_asked(ASKED))
    hub.close()
    assert not any(token in file.read_text(errors="replace") for file in tmp_path.rglob("*.json"))
    again = Hub(tmp_path, TOKEN)
    assert again.session_of(token) == name
    assert list(again.sessions) == [name]
    again.close()


def test_a_damaged_session_keeps_no_other_from_opening(tmp_path):
    hub = Hub(tmp_path, TOKEN)
    names = [hub.open(read_asked(ASKED))[0] for _ in range(2)]
    hub.close()
    (tmp_path / names[0] / rounds.NODES).write_bytes(b"damaged")
    again = Hub(tmp_path, TOKEN)
    assert list(again.sessions) == names[1:]
    again.close()


def test_a_session_whose_stream_is_over_makes_room(tmp_path, monkeypatch):
    hub = Hub(tmp_path, TOKEN, Limits(sessions=1))
    first, _ = hub.open(read_asked(ASKED))
    with pytest.raises(Full):
        hub.open(read_asked(ASKED))
    monkeypatch.setattr(hosting, "KEPT_S", -1000.0)
    second, _ = hub.open(read_asked(ASKED))
    assert list(hub.sessions) == [second]
    assert not (tmp_path / first).exists()
    hub.close()


def test_a_round_that_is_asked_for_again_is_not_done_again(session, tmp_path):
    session.upload(upload(1))
    request = RoundRequest(tmp_path, session.asked, until=1, now_s=1.0, known=0)
    first, second = RoundsWorker(), RoundsWorker()
    once = first.work(request)
    result = (tmp_path / "results" / "00000001").read_bytes()
    first.close()  # its process was lost before the reply came
    again = second.work(request)
    assert (again.number, again.used, again.fault) == (once.number, once.used, once.fault) == (1, 1, "")
    assert [one.row for one in again.rounds] == [one.row for one in once.rounds]
    assert (tmp_path / "results" / "00000001").read_bytes() == result


def test_a_session_has_one_worker_at_a_time(session, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "LOCK_S", 0.1)
    request = RoundRequest(tmp_path, session.asked, until=0, now_s=1.0, known=0)
    first, second = RoundsWorker(), RoundsWorker()
    assert first.work(request).fault == ""
    assert "another process" in second.work(request).fault
    first.close()
    assert second.work(request).fault == ""
