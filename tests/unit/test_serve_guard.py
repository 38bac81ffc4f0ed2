"""The middleware before all routes: rates, slow and long bodies, and a stopping server."""

from __future__ import annotations

import asyncio
import math

import pytest
from fastapi import HTTPException
from served_factory import FakeHub
from starlette.requests import Request

from driftlab.serve_apps import guard
from driftlab.serve_apps.guard import AccessMiddleware
from driftlab.serve_apps.quotas import Limits, QuotaExceeded, SessionQuotas, TokenBuckets


@pytest.fixture(autouse=True)
def undelayed(monkeypatch):
    """Refusals take no time."""
    monkeypatch.setattr(guard, "SLOW_S", 0.0)


async def app(scope, receive, send):
    """Read the body and reply with its length."""
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(hub, *parts, token="owner", method="POST", path="/sessions", kind="http", app=app):
    """Send a request through the middleware; a number among the parts of the body is a delay in seconds.

    Without parts, the client ends the connection.
    """
    queue, sent = list(parts), []

    async def receive():
        while queue and not isinstance(queue[0], bytes):
            await asyncio.sleep(queue.pop(0))
        if not queue:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": queue.pop(0), "more_body": bool(queue)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "client": ("10.0.0.1", 5),
        "method": method,
        "path": path,
        "query_string": b"",
        "server": ("h", 1),
        "extensions": {},
    }
    headers = [(b"authorization", f"Bearer {token}".encode())]
    asyncio.run(AccessMiddleware(app, lambda: hub)({**scope, "headers": headers, "scheme": "http"}, receive, send))
    return sent


def test_a_token_has_a_rate_and_a_burst():
    now_s = [0.0]
    rates = TokenBuckets(5.0, clock=lambda: now_s[0])
    assert [rates.allow("a") for _ in range(12)] == [True] * 10 + [False] * 2
    assert rates.allow("b")
    now_s[0] = 0.4
    assert [rates.allow("a") for _ in range(3)] == [True, True, False]


def test_an_infinite_rate_refuses_nothing():
    rates = TokenBuckets(math.inf)
    assert all(rates.allow("device", 10.0) for _ in range(3))


def test_requests_above_the_rate_get_a_retry_time():
    hub = FakeHub(rate_limit=0.5)
    assert ask(hub, b"x")[0]["status"] == 200
    refused = ask(hub, b"x")[0]
    assert refused["status"] == 429
    assert dict(refused["headers"])[b"retry-after"] == b"2"
    assert ask(hub, b"x", token="other")[0]["status"] == 401


@pytest.mark.parametrize(("parts", "status"), [((b"x" * 9, b"x" * 9), 413), ((0.5, b"x"), 408)])
def test_a_long_or_slow_body_is_refused(monkeypatch, parts, status):
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.05)
    with pytest.raises(HTTPException) as refused:
        ask(FakeHub(body_bytes=10), *parts)
    assert refused.value.status_code == status


def test_a_stopping_server_refuses_new_requests():
    hub = FakeHub()
    hub.draining = True
    refused = ask(hub, b"x")[0]
    assert (refused["status"], dict(refused["headers"])[b"retry-after"]) == (503, b"2")
    assert ask(hub, b"", method="GET")[0]["status"] == 200


def test_a_connection_that_ends_within_a_body_is_no_error():
    async def reading(scope, receive, send):
        await Request(scope, receive).body()

    assert ask(FakeHub(), app=reading) == []


def test_a_websocket_without_a_token_is_closed():
    assert ask(FakeHub(), token="wrong", kind="websocket")[0] == {
        "type": "websocket.close",
        "code": 1008,
        "reason": "the token is wrong",
    }
    assert b'driftlab_replies_total{status="401"}' not in FakeHub().meters.text()


def test_wrong_tokens_have_a_rate_that_does_not_count_for_valid_ones():
    hub = FakeHub(wrong_tokens=1.0)
    statuses = [ask(hub, b"", token="wrong")[0]["status"] for _ in range(4)]
    assert statuses == [401, 401, 429, 429]
    assert ask(hub, b"")[0]["status"] == 200


def test_only_some_refusals_of_many_wrong_tokens_are_delayed(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(guard.asyncio, "sleep", sleep)
    monkeypatch.setattr(guard, "MAX_SLOW", 1)
    hub = FakeHub(wrong_tokens=1.0)
    assert [ask(hub, b"", token=token)[0]["status"] for token in ("wrong",) * 3 + ("owner",)] == [401, 401, 429, 200]
    assert slept == [guard.SLOW_S]
    monkeypatch.setattr(guard, "MAX_SLOW", 0)
    assert ask(hub, b"", token="wrong")[0]["status"] == 429
    assert slept == [guard.SLOW_S]


def test_a_session_above_its_rate_waits_and_others_of_its_address_are_served(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(guard.asyncio, "sleep", sleep)
    hub = FakeHub(rate_limit=1.0)
    statuses = [ask(hub, b"", token=token)[0]["status"] for token in ("device",) * 4 + ("owner",)]
    assert statuses == [200, 200, 429, 429, 200]
    assert slept == [guard.SLOW_S] * 2


def test_a_websocket_above_a_limit_is_refused_late(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def full(scope, receive, send):
        await guard.deny({**scope, "extensions": {guard.DENIAL: {}}}, receive, send, 429, "full")

    monkeypatch.setattr(guard.asyncio, "sleep", sleep)
    assert ask(FakeHub(), app=full, kind="websocket")[0]["status"] == 429
    assert slept == [guard.SLOW_S]


def test_requests_and_bodies_of_a_session_are_limited_and_others_served():
    quotas = SessionQuotas(Limits(requests=2, pending_bytes=10, sockets=1))
    with quotas.request("a") as first, quotas.request("a") as second, quotas.request("b") as other:
        first(6)
        with pytest.raises(QuotaExceeded, match="10 bytes"):
            second(5)
        other(10)
        with pytest.raises(QuotaExceeded, match="2 requests"), quotas.request("a"):
            pass
        with quotas.request(None) as unlimited:
            unlimited(99)
    with quotas.request("a") as again, quotas.socket("a"):
        again(10)
        with pytest.raises(QuotaExceeded, match="1 WebSockets"), quotas.socket("a"):
            pass


def test_a_body_above_the_pending_bytes_of_a_session_is_refused():
    hub = FakeHub(pending_bytes=10)
    assert ask(hub, b"x" * 6, b"x" * 6, token="device")[0]["status"] == 429
    assert ask(hub, b"x" * 6, b"x" * 6)[0]["status"] == 200


def test_a_session_sends_only_so_many_bytes_per_second():
    hub = FakeHub(received_bytes=2.0)
    statuses = [ask(hub, b"x" * 6, token=token)[0]["status"] for token in ("device", "device", "owner")]
    assert statuses == [200, 429, 200]


def test_work_that_was_done_already_is_a_debt():
    now_s = [0.0]
    rates = TokenBuckets(1.0, burst_s=2.0, clock=lambda: now_s[0])
    rates.charge("a", 5.0)
    assert not rates.allow("a", 0.0)
    now_s[0] = 3.0
    assert rates.allow("a", 0.0)
    assert not rates.allow("a", 1.0)
    now_s[0] = 9.0
    assert rates.allow("a", 100.0)  # more than the burst takes all of it
    assert not rates.allow("a", 1.0)
