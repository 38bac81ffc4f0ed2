"""The middleware before all routes: rates, slow and long bodies, and a stopping server."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import HTTPException

from driftlab.serve_apps import guard
from driftlab.serve_apps.guard import AccessMiddleware
from driftlab.serve_apps.server_metrics import ServerMetrics
from driftlab.serve_apps.sessions import Limits
from driftlab.serve_apps.tokens import TokenRates


class FakeHub:
    """A hub that accepts the token `owner` and has no sessions."""

    def __init__(self, **limits):
        self.limits, self.draining, self.sessions = Limits(**limits), False, {}
        self.rates, self.meters = TokenRates(self.limits.rate_limit), ServerMetrics(self)

    def is_owner(self, token):
        return token == "owner"

    def session_of(self, token):
        return None


async def app(scope, receive, send):
    """Read the body and reply with its length."""
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(hub, *parts, token="owner", method="POST", path="/sessions", kind="http"):
    """Send a request through the middleware; a number among the parts of the body is a delay in seconds."""
    queue, sent = list(parts), []

    async def receive():
        while queue and not isinstance(queue[0], bytes):
            await asyncio.sleep(queue.pop(0))
        return {"type": "http.request", "body": queue.pop(0) if queue else b"", "more_body": bool(queue)}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "method": method, "path": path, "query_string": b"", "server": ("h", 1), "extensions": {}}
    headers = [(b"authorization", f"Bearer {token}".encode())]
    asyncio.run(AccessMiddleware(app, lambda: hub)({**scope, "headers": headers, "scheme": "http"}, receive, send))
    return sent


def test_a_token_has_a_rate_and_a_burst():
    now_s = [0.0]
    rates = TokenRates(5.0, clock=lambda: now_s[0])
    assert [rates.allow("a") for _ in range(12)] == [True] * 10 + [False] * 2
    assert rates.allow("b")
    now_s[0] = 0.4
    assert [rates.allow("a") for _ in range(3)] == [True, True, False]


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


def test_a_websocket_without_a_token_is_closed():
    assert ask(FakeHub(), token="wrong", kind="websocket")[0] == {
        "type": "websocket.close",
        "code": 1008,
        "reason": "the token is wrong",
    }
    assert b'driftlab_replies_total{status="401"}' not in FakeHub().meters.text()
