"""A hosted session: training rounds on uploads, and recovery of acknowledged uploads and results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from dataclasses import replace

import cv2
import numpy as np
import pytest
from served_factory import ASKED, TOKEN, upload

from driftlab.errors import RequestError, RunError, WireError
from driftlab.platform.core.files import append_lines
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field import media, rounds
from driftlab.platform.field.messages import decode_results, decode_samples
from driftlab.platform.field.opening import dump_weights, load_weights
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.rounds import RoundFacts, RoundRequest, RoundsWorker
from driftlab.platform.field.state_file import dump_objects
from driftlab.serve_apps import hosting
from driftlab.serve_apps.batching import ImageBatches
from driftlab.serve_apps.hosting import HostedSession, UploadQueueFull
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.sessions import ServerFull, SessionRegistry, digest_of

FPS = 4.0
TRACKING = {"name": "remote_tracking", "codec": "h264"}


def payloads(session):
    return [result.payload for result in decode_results(session.results(0)[0], FPS)]


@pytest.fixture
def session(tmp_path):
    return HostedSession(tmp_path, parse_session_request(ASKED))


@pytest.mark.slow
def test_a_round_uses_all_waiting_uploads(session):
    assert not session.has_work
    assert [session.upload(upload(number)) for number in (1, 2)] == [1, 2]
    session.work()
    (entry,) = session.history()
    assert (entry["number"], entry["row"]["uploads"], entry["row"]["samples"]) == (1, 2, 4)
    assert not session.has_work
    assert session.status()["version"] == 1


@pytest.mark.slow
def test_an_unloaded_network_returns_with_the_updates_since(session, tmp_path):
    images = rng_for(0, "images").integers(0, 255, (2, 32, 48, 3)).astype(np.uint8)
    for number in (1, 2):
        session.upload(upload(number))
        session.work()
        before, version = session.predict(images)[1].tolist(), session.status()["version"]
        if number == 1:
            assert session.unload()
            assert (session.is_loaded, session.status()["version"]) == (False, version)
            assert session.is_updating  # so that predictions do not read it on the event loop
    assert session.is_loaded
    assert session.unload()
    session.upload(upload(3))
    session.work()
    assert not session.is_loaded  # a round does not need it here
    assert (session.fault, session.progress.number) == ("", 3)
    version, found = session.predict(images)
    assert (version, session.status()["version"]) == (3, 3)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("loaded"))
    again = HostedSession(copy, parse_session_request(ASKED))
    assert again.predict(images)[1].tolist() == found.tolist() != before


def test_a_forward_pass_has_a_limit_of_pixels(session, monkeypatch):
    """Requests beyond it form the next batch, and a larger one takes several passes.

    The size of an encoded image does not matter.
    """
    images = rng_for(0, "images").integers(0, 255, (8, 32, 48, 3)).astype(np.uint8)
    together, call, passes = session.predict(images)[1], session._session.call, []

    def counted(node, verb, batch):
        passes.append(len(batch))
        return call(node, verb, batch)

    async def ask():
        return await asyncio.gather(*(batches.predict(session, one) for one in requests))

    monkeypatch.setattr(session._session, "call", counted)
    monkeypatch.setattr(hosting, "CPU_BATCH_PIXELS", 2 * 32 * 48)
    png = cv2.imencode(".png", np.zeros((64, 96, 3), np.uint8))[1].tobytes()
    requests = [images[:1], images[1:2], images[2:3], images[3:], png, png]
    with contextlib.closing(ImageBatches()) as batches:
        found = asyncio.run(ask())
    assert passes == [2, 1, 2, 2, 1, 2]
    assert np.concatenate([one.predictions for one in found[:4]]).tolist() == together.tolist()


@pytest.mark.slow
def test_only_so_many_networks_are_in_memory(tmp_path):
    hub = SessionRegistry(tmp_path, TOKEN, networks=2)
    names = [hub.open(parse_session_request({**ASKED, "seed": seed}))[0] for seed in range(3)]
    images = np.zeros((1, 32, 48, 3), dtype=np.uint8)
    loaded = [[hub.sessions[name].is_loaded for name in names]]
    for name in (names[0], names[0], names[1]):
        hub.sessions[name].predict(images)
        loaded.append([hub.sessions[name].is_loaded for name in names])
    first = [True, False, True]
    assert loaded == [[False, True, True], first, first, [True, True, False]]
    with hub.sessions[names[0]]._using:  # it predicts
        hub.sessions[names[2]].predict(images)
    assert [hub.sessions[name].is_loaded for name in names] == [True, True, True]
    hub.drop(names[0])
    assert len(hub._networks._sessions) == 2
    hub.close()


@pytest.mark.slow
def test_a_worker_closes_the_sessions_whose_rounds_are_the_longest_ago(tmp_path):
    """Rounds of a session that was closed in between have the same results."""
    results = {}
    for most in (1, 8):
        worker = RoundsWorker(networks=most)
        hosted = [HostedSession(tmp_path / f"{most}-{seed}", _seeded(seed), worker) for seed in range(2)]
        for number in (1, 2):
            for session in hosted:
                session.upload(upload(number))
                session.work()
            assert len(worker._sessions) == min(most, 2)
        results[most] = [payloads(session) for session in hosted]
        worker.close()
    assert results[1] == results[8]


def _seeded(seed):
    return parse_session_request({**ASKED, "seed": seed})


@pytest.mark.slow
def test_a_repeated_upload_is_acknowledged_and_used_once(session):
    session.upload(upload(1))
    assert session.upload(upload(1)) == 1
    session.work()
    assert session.upload(upload(1)) == 1
    assert not session.has_work
    with pytest.raises(WireError):
        session.upload(upload(3))


@pytest.mark.slow
def test_a_full_queue_refuses_uploads(session):
    for number in range(1, hosting.MAX_WAITING + 1):
        session.upload(upload(number))
    with pytest.raises(UploadQueueFull):
        session.upload(upload(hosting.MAX_WAITING + 1))


def test_another_codec_is_refused(session):
    with pytest.raises(WireError):
        session.upload(upload(1, codec="png"))


@pytest.mark.slow
def test_an_upload_names_a_network_of_the_family(session):
    message = decode_samples(upload(1), FPS)
    assert message.runs is None
    with pytest.raises(WireError):
        session.upload(replace(message, runs=1).encode(FPS))
    assert session.upload(replace(message, runs=0).encode(FPS)) == 1
    session.work()
    assert (session.app.choice.runs, session.status()["version"]) == (0, 1)


def test_loaded_weights_have_the_dumped_shapes():
    weights = {"scalar": np.array(3.0), "transposed": np.arange(6.0).reshape(2, 3).T}
    loaded = load_weights(dump_weights(weights))
    assert {name: array.shape for name, array in loaded.items()} == {"scalar": (), "transposed": (3, 2)}
    assert (loaded["transposed"] == weights["transposed"]).all()


@pytest.mark.slow
def test_a_damaged_upload_is_dropped_without_training(session):
    session.upload(upload(1)[:-3])
    session.work()
    assert (session.fault, session.history(), session.has_work) == ("", [], False)
    session.upload(upload(2))
    session.work()
    assert session.status()["version"] == 1


@pytest.mark.slow
def test_an_upload_that_exceeds_the_decoder_is_dropped_alone(session, monkeypatch):
    monkeypatch.setattr(media, "WALL_S", 1e-3)
    session.upload(upload(1))
    session.work()
    monkeypatch.undo()
    session.upload(upload(2))
    session.work()
    assert (session.fault, session.status()["version"], len(session.history())) == ("", 1, 1)


@pytest.mark.slow
def test_results_are_read_in_parts_of_limited_size(session, monkeypatch):
    for number in (1, 2, 3):
        session.upload(upload(number))
        session.work()
    whole, last = session.results(0)
    monkeypatch.setattr(hosting, "MAX_REPLY_BYTES", 1)
    parts, after = [], 0
    while after < last:
        part, after = session.results(after)
        parts.append(part)
    assert (len(parts), b"".join(parts), session.results(after)) == (3, whole, (b"", 3))


def test_waiting_uploads_have_a_limit_of_bytes(session, monkeypatch):
    monkeypatch.setattr(hosting, "MAX_WAITING_BYTES", 1)
    session.upload(upload(1))
    with pytest.raises(UploadQueueFull):
        session.upload(upload(2))


@pytest.mark.slow
def test_a_session_resumes_in_another_process(session, tmp_path):
    session.upload(upload(1))
    session.work()
    session.upload(upload(2))  # acknowledged, but not used yet
    sent = session.results(0)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    again = HostedSession(copy, parse_session_request(ASKED))
    assert again.results(0) == sent
    assert again.has_work
    again.work()
    session.work()
    assert payloads(again) == payloads(session)  # the same update as in the first process
    assert again.status()["version"] == 2
    assert list((copy / "uploads").iterdir()) == []


def test_the_state_of_another_version_is_refused_with_a_fix(tmp_path):
    file = tmp_path / rounds.STATE
    for data in (b"", b"damaged", dump_objects({"no": "session"}), dump_objects(3)[:-1]):
        file.write_bytes(data)
        with pytest.raises(RunError, match=r"another version of driftlab: .*Start a new session"):
            rounds.read_state(tmp_path)


def test_a_planted_pickle_is_not_read(tmp_path):
    planted = tmp_path / "planted"
    (tmp_path / rounds.OLD_STATE).write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % os.fsencode(planted))
    with pytest.raises(RunError, match="Start a new session"):
        rounds.read_state(tmp_path)
    assert not planted.exists()


def test_a_round_that_was_interrupted_before_its_state_was_stored_is_removed(tmp_path):
    (tmp_path / rounds.STATE).write_bytes(dump_objects(rounds.SessionState(number=2)))
    facts = [RoundFacts(number, 0.5, {"loss": float("nan")}, None) for number in (1, 2, 3)]
    append_lines(tmp_path / rounds.ROUNDS, [json.dumps(vars(one)) for one in facts])
    with (tmp_path / rounds.ROUNDS).open("a") as file:
        file.write('{"number": 4, "ti')
    before = (tmp_path / rounds.ROUNDS).read_bytes()
    assert [one.number for one in rounds.read_state(tmp_path).rounds] == [1, 2]
    assert (tmp_path / rounds.ROUNDS).read_bytes() == before  # another process may be about to store the third
    assert [one.number for one in rounds.read_state(tmp_path, repair=True).rounds] == [1, 2]
    append_lines(tmp_path / rounds.ROUNDS, [json.dumps(vars(facts[1]))])
    assert len(rounds.read_state(tmp_path).rounds) == 3


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(RequestError, match="Other users can write"):
        SessionRegistry(tmp_path, TOKEN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path):
    os.chown(tmp_path, 1234, 1234)
    with pytest.raises(RequestError, match="belongs to user 1234"):
        SessionRegistry(tmp_path, TOKEN)


@pytest.mark.slow
def test_a_resync_sends_all_weights(session):
    session.upload(upload(1))
    session.work()
    session.ask_all()
    session.work()
    first, second = decode_results(session.results(0)[0], FPS)
    assert len(second.payload) > 3 * len(first.payload)
    assert session.status()["version"] == 2


def test_a_resync_is_not_lost_with_its_process(session, tmp_path):
    session.upload(upload(1))
    session.work()
    session.ask_all()
    again = HostedSession(shutil.copytree(tmp_path, tmp_path.with_name("resync")), parse_session_request(ASKED))
    assert again.has_work
    again.work()
    assert (again.progress.number, again.has_work) == (2, False)
    assert not HostedSession(again.folder, parse_session_request(ASKED)).has_work


@pytest.mark.slow
def test_mutated_uploads_do_not_fail_a_session(session):
    body, rng = upload(1), rng_for(0, "mutations")
    for _ in range(300):
        data = bytearray(body)
        for place in rng.integers(len(data), size=2):
            data[place] = rng.integers(256)
        with contextlib.suppress(WireError, UploadQueueFull):
            session.upload(bytes(data))
        if session.has_work:
            session.work()
    assert session.fault == ""


def test_remote_tracking_returns_labels(tmp_path):
    asked = parse_session_request({**ASKED, "system": {"name": "remote_tracking", "streaming": TRACKING}})
    session = HostedSession(tmp_path, asked)
    session.upload(upload(1))
    session.work()
    (result,) = decode_results(session.results(0)[0], FPS)
    assert (result.kind, result.captured_s, session.status()["version"]) == ("labels", 0.75, 0)
    assert session.history()[0]["row"] == {}


@pytest.mark.slow
def test_the_oldest_results_are_deleted(session, monkeypatch):
    for module in (hosting, rounds):
        monkeypatch.setattr(module, "KEPT_RESULTS", 2)
    for number in (1, 2, 3):
        session.upload(upload(number))
        session.work()
    assert session.results(0) is None
    assert len(list(decode_results(session.results(1)[0], FPS))) == 2


def test_a_hub_opens_its_sessions_again(tmp_path):
    hub = SessionRegistry(tmp_path, TOKEN)
    name, token = hub.open(parse_session_request(ASKED))
    hub.close()
    assert not any(token in file.read_text(errors="replace") for file in tmp_path.rglob("*.json"))
    again = SessionRegistry(tmp_path, TOKEN)
    assert again.session_of(digest_of(token)) == name
    assert list(again.sessions) == [name]
    again.close()


def test_a_damaged_session_does_not_prevent_others_from_opening(tmp_path):
    hub = SessionRegistry(tmp_path, TOKEN)
    names = [hub.open(parse_session_request(ASKED))[0] for _ in range(2)]
    hub.close()
    (tmp_path / names[0] / rounds.STATE).write_bytes(b"damaged")
    again = SessionRegistry(tmp_path, TOKEN)
    assert list(again.sessions) == names[1:]
    again.close()


def test_a_finished_session_is_replaced_by_a_new_one(tmp_path, monkeypatch):
    hub = SessionRegistry(tmp_path, TOKEN, Limits(max_sessions=1))
    first, _ = hub.open(parse_session_request(ASKED))
    with pytest.raises(ServerFull):
        hub.open(parse_session_request(ASKED))
    monkeypatch.setattr(hosting, "IDLE_TIMEOUT_S", -1000.0)
    second, _ = hub.open(parse_session_request(ASKED))
    assert list(hub.sessions) == [second]
    assert not (tmp_path / first).exists()
    hub.close()


def test_a_new_session_waits_for_the_round_of_the_one_that_it_replaces_and_nothing_else_does(tmp_path, monkeypatch):
    hub = SessionRegistry(tmp_path, TOKEN, Limits(max_sessions=1))
    first, _ = hub.open(parse_session_request(ASKED))
    monkeypatch.setattr(hosting, "IDLE_TIMEOUT_S", -1000.0)
    with hub.sessions[first].idle():  # as during a round
        opening = hub.begin_opening(parse_session_request(ASKED))
        assert hub.states() == {}
        with pytest.raises(TimeoutError):
            opening.result(0.2)
    second, token = opening.result(30)
    assert hub.session_of(digest_of(token)) == second
    assert not (tmp_path / first).exists()
    hub.close()


def test_a_round_that_is_chosen_before_its_session_ends_does_nothing(session):
    session.upload(upload(1))
    session.end()
    session.work()
    assert (session.fault, session.history()) == ("", [])


def test_no_token_is_lost_that_is_added_while_another_one_is_revoked(tmp_path):
    hub = SessionRegistry(tmp_path, TOKEN)
    (name, _), tokens = hub.open(parse_session_request(ASKED)), hub.tokens  # which another thread has read
    hub.revoke(name)
    tokens["a digest"] = "new"
    assert hub.tokens == {"a digest": "new"}
    hub.close()


def test_a_repeated_request_does_not_repeat_its_round(session, tmp_path):
    session.upload(upload(1))
    request = RoundRequest(tmp_path, session.asked, until=1, now_s=1.0, known=0)
    first, second = RoundsWorker(), RoundsWorker()
    once = first.work(request)
    result = (tmp_path / "results" / "00000001").read_bytes()
    first.close()  # as if its process was lost before the reply
    again = second.work(request)
    assert (again.number, again.used, again.fault) == (once.number, once.used, once.fault) == (1, 1, "")
    assert [facts.row for facts in again.rounds] == [facts.row for facts in once.rounds]
    assert (tmp_path / "results" / "00000001").read_bytes() == result


def test_a_session_is_locked_by_one_worker(session, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "LOCK_TIMEOUT_S", 0.1)
    request = RoundRequest(tmp_path, session.asked, until=0, now_s=1.0, known=0)
    first, second = RoundsWorker(), RoundsWorker()
    assert first.work(request).fault == ""
    assert "another process" in second.work(request).fault
    first.close()
    assert second.work(request).fault == ""
