"""Shards of a server: one replica at a time, and each request at the replica of its session."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from types import SimpleNamespace

import pytest
from ray.serve._private.common import StreamingHTTPRequest
from served_factory import ASKED, upload

from driftlab.platform.field.request import parse_session_request
from driftlab.serve_apps import routes, sessions
from driftlab.serve_apps.hosting import SESSION, SessionMoved
from driftlab.serve_apps.session_router import SessionRouter
from driftlab.serve_apps.shards import COUNT, AllShards, HeldShards, replica_of, shard_of

NAMES = [f"{number:016x}" for number in range(24)]  # of 12, all may be one replica's


def ignore(shard):
    """Do nothing."""


def step(*replicas):
    """Follow the files with all replicas twice: some give shards back, then others take them."""
    for replica in 2 * replicas:
        replica.step(ignore, ignore)


def test_a_shard_has_one_replica_and_returns_when_that_ends(tmp_path):
    first = HeldShards(tmp_path)
    step(first)
    assert first.numbers == list(range(COUNT))
    second = HeldShards(tmp_path)
    second.step(ignore, ignore)
    assert second.held == frozenset()  # the first one holds them all until it looks
    step(first, second)
    assert sorted((*first.held, *second.held)) == list(range(COUNT))
    assert 0.25 < second.share < 0.75
    second._own.close()  # as the end of its process does
    for file in second._files.values():
        file.close()
    step(first)
    assert first.share == 1.0
    first.close()


def test_a_further_replica_takes_shards_and_moves_no_other():
    names = [f"{number:016x}" for number in range(4)]
    before, after = ([replica_of(shard, names[:count]) for shard in range(COUNT)] for count in (3, 4))
    assert all(new in (old, names[3]) for old, new in zip(before, after, strict=True))
    assert min(Counter(after).values()) > COUNT / 4 / 2


def test_a_replica_that_starts_is_not_taken_for_one_that_has_ended(tmp_path):
    first, second = HeldShards(tmp_path), HeldShards(tmp_path)
    assert first.replicas() == second.replicas() == sorted((first.name, second.name))
    second._own.close()
    assert first.replicas() == [first.name]
    assert not (tmp_path / f"replica-{second.name}.lock").exists()


def test_a_shard_is_locked_before_its_sessions_open_and_closed_before_it_is_free(tmp_path):
    first, met = HeldShards(tmp_path), []

    def held_elsewhere(number):
        other = HeldShards(tmp_path)
        met.append((number, other._lock(number), number in first.held))
        other._own.close()

    first.step(held_elsewhere, held_elsewhere)
    second = HeldShards(tmp_path)
    first.step(held_elsewhere, held_elsewhere)
    moved = [number for number in range(COUNT) if number not in first.held]
    assert met == [(number, False, False) for number in (*range(COUNT), *moved)]
    second.step(ignore, ignore)
    assert second.numbers == moved


def test_a_single_replica_has_all_sessions_and_no_lock():
    assert all(map(AllShards().holds, NAMES))
    assert AllShards().share == 1.0


class FakeSession:
    has_work = moved = closed = False

    def __init__(self, folder, *args):
        self.folder = folder

    def end(self):
        """Do nothing."""


@pytest.mark.slow
def test_a_registry_opens_the_sessions_of_its_shards_only(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "HostedSession", FakeSession)
    monkeypatch.setattr(sessions, "parse_session_request", lambda asked: asked)
    tmp_path.chmod(0o700)
    for name in NAMES:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / SESSION).write_text(json.dumps({"token": "", "asked": {}, "created": 0, "revoked": True}))
    held = [HeldShards(tmp_path), HeldShards(tmp_path)]
    step(*held)
    opened = []
    for shards in held:
        hub = sessions.SessionRegistry(tmp_path, "token", workers=[SimpleNamespace(at_once=1)], shards=shards)
        for number in shards.numbers:
            hub.reopen(number)
        assert all(shards.holds(hub._new_name()) for _ in range(8))
        assert hub.max_sessions < hub.limits.max_sessions
        opened.append(set(hub.sessions))
        hub.close()
    assert opened[0] | opened[1] == set(NAMES)
    assert not opened[0] & opened[1]
    assert all(opened)


@pytest.fixture
def hubs(tmp_path):
    """Return the registries of two replicas; the first holds all shards."""
    found = []
    for _ in range(2):
        shards = HeldShards(tmp_path)
        hub = sessions.SessionRegistry(tmp_path, "a token of tests", shards=shards)
        found.append(hub)
        if len(found) == 1:
            shards.step(hub.reopen, hub.hand_over)
    yield found
    for hub in found:
        hub.close()
        hub.shards.close()


def follow(*hubs):
    for hub in 2 * hubs:
        hub.shards.step(hub.reopen, hub.hand_over)


@pytest.mark.slow
def test_a_session_moves_with_its_token_and_its_state(hubs, monkeypatch):
    """The first replica refuses its requests, and a device repeats them."""
    first, second = hubs
    stays, moves = (next(name for name in _drawn() if _moves(name, hubs) == moved) for moved in (False, True))
    monkeypatch.setattr(first, "_new_name", iter((stays, moves)).__next__)
    names = dict(first.open(parse_session_request(ASKED)) for _ in range(2))
    name, token = moves, names[moves]
    session = first.sessions[name]
    session.upload(upload(1))
    follow(first, second)  # after the round
    assert [hub.session_of(sessions.digest_of(token)) for hub in (first, second)] == [None, name]
    assert (list(first.sessions), list(second.sessions)) == ([stays], [moves])
    assert not first.shards.holds(name)
    with pytest.raises(SessionMoved):
        session.ask_all()
    moved = second.sessions[name]
    assert moved.progress.number == session.progress.number
    assert moved.received == 1
    assert moved.weights == session.weights
    session.work()  # of a thread that has not noticed yet
    moved.ask_all()


def _drawn():
    return (f"{number:016x}" for number in range(10 * COUNT))


def _moves(name, hubs):
    return replica_of(shard_of(name), [hub.shards.name for hub in hubs]) == hubs[1].shards.name


@pytest.mark.slow
def test_a_session_that_is_dropped_while_it_moves_stays_dropped(hubs, monkeypatch):
    first, second = hubs
    monkeypatch.setattr(first, "_new_name", lambda: next(name for name in _drawn() if _moves(name, hubs)))
    name, _ = first.open(parse_session_request(ASKED))
    monkeypatch.setattr(first.sessions[name], "leave", lambda: first.drop(name))
    follow(first, second)
    assert not first.sessions
    assert not second.sessions
    assert not (first.folder / name).exists()
    first.drop(name)


@pytest.mark.slow
def test_a_session_whose_shard_moves_while_it_opens_is_refused(hubs, monkeypatch):
    first, _ = hubs
    monkeypatch.setattr(first, "_new_name", lambda: "a" * 16)
    monkeypatch.setattr(first.shards, "holds", lambda session: False)
    with pytest.raises(SessionMoved):
        first.open(parse_session_request(ASKED))
    assert not first.sessions
    assert not (first.folder / ("a" * 16)).exists()


def chosen(args=(), **kwargs):
    """Return the names of the replicas among which Serve may choose for a request."""
    shards = {"even": [*range(0, COUNT, 2)], "odd": [*range(1, COUNT, 2)], "new": []}
    stats = [{"replica": name, "shards": numbers} for name, numbers in shards.items()]
    replicas = [SimpleNamespace(routing_stats=one) for one in (*stats, {})]
    request = SimpleNamespace(args=args, kwargs=kwargs, routing_context=SimpleNamespace(should_backoff=False))
    (found,) = asyncio.run(object.__new__(SessionRouter).choose_replicas(replicas, request))
    assert request.routing_context.should_backoff
    return [replica.routing_stats.get("replica") for replica in found]


def over_http(path, method="GET", kind="http"):
    """Return the arguments with which Serve's proxy calls a replica."""
    scope = {"type": kind, "path": path, **({"method": method} if kind == "http" else {})}
    return (pickle.dumps(StreamingHTTPRequest(asgi_scope=scope, proxy_actor_name="proxy")),)


@pytest.mark.parametrize("name", NAMES[:4])
def test_requests_of_a_session_go_to_the_replica_of_its_shard(name):
    """A client cannot choose another replica: the router reads the path alone."""
    own = ["odd" if shard_of(name) % 2 else "even"]
    for path in ("", "/predict", "/updates", "/images/frame"):
        assert chosen(over_http(f"/sessions/{name}{path}")) == own
    assert chosen(over_http(f"/sessions/{name}/live", kind="websocket")) == own


def test_new_sessions_are_divided_over_the_replicas_with_shards():
    """With equal queues Serve takes the first of several candidates, so the router names one, by chance."""
    found = [chosen(over_http("/sessions", "POST")) for _ in range(200)]
    assert {len(candidates) for candidates in found} == {1}
    assert 50 < found.count(["even"]) < 150  # 7 standard deviations
    assert found.count(["even"]) + found.count(["odd"]) == len(found)


def test_other_requests_go_to_the_replica_of_shard_0():
    for path in ("/", "/sessions", "/metrics", "/healthz", "/demo"):
        assert chosen(over_http(path)) == ["even"]
    assert chosen(replica="new") == ["new"]
    assert chosen() == ["even"]


def test_the_list_has_the_sessions_of_all_shards():
    async def elsewhere():
        return {"b": {"state": "running"}}

    hub = SimpleNamespace(states=lambda: {"a": {"state": "waiting"}}, elsewhere=elsewhere)
    assert set(asyncio.run(routes.list_sessions(hub))) == {"a", "b"}
