"""Middleware before all routes: checks token, request rate, and size and duration of the body."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftlab.serve_apps.http_server import accept_connection
from driftlab.serve_apps.quotas import QuotaExceeded
from driftlab.serve_apps.replies import MOVED, RETRY_AFTER, refuse
from driftlab.serve_apps.sessions import SessionRegistry, digest_of
from driftlab.serve_apps.shards import session_of
from driftlab.serve_apps.tokens import TOKEN_REQUIRED, token_of

BODY_TIMEOUT_S = 30.0  # for the whole body
SLOW_S, MAX_SLOW = 1.0, 200  # delay of refusals above a limit; as many of them at the same time
CLOSE = {"Connection": "close"}  # the client of a refused token must connect again
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob: data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
HUB, SESSION = "driftlab.hub", "driftlab.session"  # of the scope: registry; the token's session, None for other tokens
REFUSED = "driftlab.refused"  # of the scope: a function that checks a scope again, and returns a refusal or None
DENIAL = "websocket.http.response"  # ASGI extension that refuses a WebSocket with an HTTP status


@dataclass(frozen=True, slots=True)
class Caller:
    """Address and token of a connection, and the session in its path."""

    address: str
    token: str
    digest: str
    session: str | None

    @classmethod
    def of(cls, scope: Scope) -> Caller:
        client, token = scope.get("client"), token_of(scope)
        return cls(client[0] if client else "", token, digest_of(token), session_of(scope["path"]))


class AccessMiddleware:
    """Refuses connections before they reach a route, and adds headers to every reply."""

    def __init__(self, app: ASGIApp, hub: Callable[[], SessionRegistry]) -> None:
        self.app, self.hub, self._slow = app, hub, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        hub = scope[HUB] = self.hub()
        scope[REFUSED] = partial(self._refused, Caller.of(scope), hub)
        refused = scope[REFUSED](scope)
        if refused is None:
            accept_connection(scope)
        if scope["type"] == "websocket":
            send = self._slowing(send)
            await (self.app(scope, receive, send) if refused is None else deny(scope, receive, send, *refused))
            return
        send = self._counting(send, hub)
        if refused is not None:
            await refuse(send, *refused)
            return
        try:
            with hub.quotas.request(scope[SESSION]) as read:
                await self.app(scope, _limited(receive, hub.limits.body_bytes, read), send)
        except QuotaExceeded as error:  # before the route; the application replies to one within it
            await refuse(send, 429, str(error), RETRY_AFTER)
        except ClientDisconnect:  # before the end of its body, so a reply has no receiver
            pass

    def _refused(self, caller: Caller, hub: SessionRegistry, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """Return status, reason and headers of a refusal; None for a valid connection."""
        if caller.session is not None and not hub.shards.holds(caller.session):
            return 503, MOVED, RETRY_AFTER
        token = caller.token
        session = scope[SESSION] = hub.session_of(caller.digest)
        if session is None and not hub.is_owner(token) and not _is_enrolling(scope, hub, token):
            if not hub.wrong_tokens.allow(caller.address):
                return 429, "too many requests without a token", RETRY_AFTER | CLOSE
            return 401, "the token is wrong" if token else "give a token", TOKEN_REQUIRED | CLOSE
        if not hub.rates.allow(token):
            return 429, f"more than {hub.limits.rate_limit:g} requests per second", RETRY_AFTER
        if session is not None:
            hub.seen(session, caller.address)
        if hub.draining and scope.get("method", "GET") == "POST":
            return 503, "the server is stopping", RETRY_AFTER
        return None

    async def _slow_down(self, message: Message) -> None:
        """Delay a refusal above a limit.

        Clients that wait for them then send few requests, and this takes no processor time.
        """
        if message.get("status") == 429 and self._slow < MAX_SLOW:
            self._slow += 1
            try:
                await asyncio.sleep(SLOW_S)
            finally:
                self._slow -= 1

    def _slowing(self, send: Send) -> Send:
        """Return a `send` that delays refusals above a limit."""

        async def slowed(message: Message) -> None:
            await self._slow_down(message)
            await send(message)

        return slowed

    def _counting(self, send: Send, hub: SessionRegistry) -> Send:
        """Return a `send` that also counts the reply and adds the security headers."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                hub.meters.count_reply(message["status"])
                await self._slow_down(message)
                message = {**message, "headers": [*message.get("headers", ()), *ENCODED_HEADERS]}
            await send(message)

        return counted


def _limited(receive: Receive, max_bytes: int, read: Callable[[int], None]) -> Receive:
    """Return a `receive` that raises for a long or slow body; messages after the body are unchecked."""
    until_s, size, done = time.monotonic() + BODY_TIMEOUT_S, 0, False

    async def limited() -> Message:
        nonlocal size, done
        if done:
            return await receive()
        message = await _within(receive, until_s - time.monotonic())
        if message is None:
            raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
        size += len(message.get("body", b""))
        done = message["type"] != "http.request" or not message.get("more_body", False)
        if size > max_bytes:
            raise HTTPException(413, f"the body has more than {max_bytes} bytes")
        read(len(message.get("body", b"")))
        return message

    return limited


def _is_enrolling(scope: Scope, hub: SessionRegistry, token: str) -> bool:
    """Return whether a request is one of those that the enrolment token allows."""
    called = scope.get("method"), scope["path"]
    return called in (("POST", "/sessions"), ("GET", "/healthz")) and hub.is_enrolment(token)


async def _within(receive: Receive, max_s: float) -> Message | None:
    """Return a message, or None after a time limit; `asyncio.wait_for` would create a task."""
    task, late = asyncio.current_task(), False

    def cancel() -> None:
        nonlocal late
        late = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(max(0.0, max_s), cancel)
    try:
        return await receive()
    except asyncio.CancelledError:
        if not late:
            raise
        getattr(task, "uncancel", int)()  # from Python 3.11 on
        return None
    finally:
        timer.cancel()


async def deny(
    scope: Scope, receive: Receive, send: Send, status: int, reason: str, headers: dict[str, str] | None = None
) -> None:
    """Refuse a WebSocket with a status if the server supports it, else by closing it."""
    if DENIAL not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return

    async def renamed(message: Any) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await refuse(renamed, status, reason, headers or {})
