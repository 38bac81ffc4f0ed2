"""Shards of a server: one owner at a time, and each request at the replica of its session."""

from __future__ import annotations

import asyncio
import json
import pickle
from types import SimpleNamespace

import pytest
from ray.serve._private.common import StreamingHTTPRequest

from driftlab.errors import RunError
from driftlab.serve_apps import routes, sessions
from driftlab.serve_apps.hosting import SESSION
from driftlab.serve_apps.session_router import SessionRouter
from driftlab.serve_apps.shards import ALL, Shard, shard_of, take_shard

NAMES = [f"{number:016x}" for number in range(12)]


def test_a_shard_has_one_owner_until_its_process_ends(tmp_path):
    first, second = take_shard(tmp_path, 2), take_shard(tmp_path, 2)
    assert [first.shard, second.shard] == [Shard(0, 2), Shard(1, 2)]
    with pytest.raises(RunError, match="each of the 2 shards"):
        take_shard(tmp_path, 2, within_s=0)
    second.file.close()
    assert take_shard(tmp_path, 2).shard == second.shard


def test_a_single_replica_has_all_sessions_and_no_lock(tmp_path):
    assert take_shard(tmp_path, 1).shard == ALL
    assert list(tmp_path.iterdir()) == []
    assert all(map(ALL.holds, NAMES))


class FakeSession:
    has_work = False

    def __init__(self, folder, *args):
        self.folder = folder

    def end(self):
        """Do nothing."""


@pytest.mark.slow
def test_a_registry_opens_the_sessions_of_its_shard_only(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "HostedSession", FakeSession)
    monkeypatch.setattr(sessions, "parse_session_request", lambda asked: asked)
    for name in NAMES:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / SESSION).write_text(json.dumps({"token": "", "asked": {}, "created": 0, "revoked": True}))
    tmp_path.chmod(0o700)
    opened = []
    for number in range(2):
        hub = sessions.SessionRegistry(tmp_path, "token", workers=[SimpleNamespace(at_once=1)], shard=Shard(number, 2))
        assert all(Shard(number, 2).holds(hub._new_name()) for _ in range(8))
        opened.append(set(hub.sessions))
        hub.close()
    assert opened[0] | opened[1] == set(NAMES)
    assert not opened[0] & opened[1]
    assert all(opened)


def chosen(router, args=(), **kwargs):
    """Return the shards of the replicas among which Serve may choose for a request."""
    replicas = [SimpleNamespace(routing_stats=stats) for stats in ({"shard": 1}, {}, {"shard": 0})]
    request = SimpleNamespace(args=args, kwargs=kwargs, routing_context=SimpleNamespace(should_backoff=False))
    (found,) = asyncio.run(router.choose_replicas(replicas, request))
    assert request.routing_context.should_backoff
    return [replica.routing_stats.get("shard") for replica in found]


@pytest.fixture
def router():
    router = object.__new__(SessionRouter)
    router.initialize_state(replicas=2)
    return router


def over_http(path, method="GET", kind="http"):
    """Return the arguments with which Serve's proxy calls a replica."""
    scope = {"type": kind, "path": path, **({"method": method} if kind == "http" else {})}
    return (pickle.dumps(StreamingHTTPRequest(asgi_scope=scope, proxy_actor_name="proxy")),)


@pytest.mark.parametrize("name", NAMES[:4])
def test_requests_of_a_session_go_to_the_replica_of_its_shard(router, name):
    """A client cannot choose another replica: the router reads the path alone."""
    own = [shard_of(name, 2)]
    for path in ("", "/predict", "/updates", "/images/frame"):
        assert chosen(router, over_http(f"/sessions/{name}{path}")) == own
    assert chosen(router, over_http(f"/sessions/{name}/live", kind="websocket")) == own


def test_new_sessions_go_to_any_replica_and_other_requests_to_the_first(router):
    assert chosen(router, over_http("/sessions", "POST")) == [1, None, 0]
    for path in ("/", "/sessions", "/metrics", "/healthz", "/demo"):
        assert chosen(router, over_http(path)) == [0]
    assert chosen(router, shard=1) == [1]


def test_the_list_has_the_sessions_of_all_shards():
    async def elsewhere():
        return {"b": {"state": "running"}}

    hub = SimpleNamespace(states=lambda: {"a": {"state": "waiting"}}, elsewhere=elsewhere)
    assert set(asyncio.run(routes.list_sessions(hub))) == {"a", "b"}
