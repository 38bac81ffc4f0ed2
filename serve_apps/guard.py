"""What every connection passes before a route: token, rate, and limits of size and time of its body."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftlab.serve_apps.sessions import Hub
from driftlab.serve_apps.tokens import ASK_TOKEN, token_of

BODY_S = 30.0  # for a body to come
RETRY_AFTER = {"Retry-After": "2"}
GUARDS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob: data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PACKED_GUARDS = [(name.lower().encode(), value.encode()) for name, value in GUARDS.items()]
DENIAL = "websocket.http.response"  # the extension by which a WebSocket is refused with a status


class Guard:
    """Refuses connections before their route, and sets the headers of every reply."""

    def __init__(self, app: ASGIApp, hub: Callable[[], Hub]) -> None:
        self.app, self.hub = app, hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = self._refused(HTTPConnection(scope))
        if scope["type"] == "websocket":
            await (self.app(scope, receive, send) if refused is None else deny(scope, receive, send, *refused))
            return
        told = self._telling(send)
        if refused is not None:
            await _reply(told, *refused)
        else:
            await self.app(scope, self._limited(receive), told)

    def _refused(self, asked: HTTPConnection) -> tuple[int, str, dict[str, str]] | None:
        """Return status, reason and headers of a refusal."""
        hub, token = self.hub(), token_of(asked)
        if not hub.is_owner(token) and hub.session_of(token) is None:
            return 401, "give a token", ASK_TOKEN
        if not hub.rates.allow(token):
            return 429, f"more than {hub.limits.rate:g} requests per second", RETRY_AFTER
        if hub.draining and asked.scope.get("method", "GET") == "POST":
            return 503, "the server is about to stop", RETRY_AFTER
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Refuse a body that is too long or comes too slowly; what follows it is no part of it."""
        most, until_s, size, done = self.hub().limits.body_bytes, time.monotonic() + BODY_S, 0, False

        async def limited() -> Message:
            nonlocal size, done
            if done:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until_s - time.monotonic()))
            except TimeoutError as error:
                raise HTTPException(408, f"the body did not come within {BODY_S:g} s") from error
            size += len(message.get("body", b""))
            done = message["type"] != "http.request" or not message.get("more_body", False)
            if size > most:
                raise HTTPException(413, f"the body may have {most} bytes")
            return message

        return limited

    def _telling(self, send: Send) -> Send:
        """Set the headers of a reply, and count it."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.hub().meters.count_reply(message["status"])
                message = {**message, "headers": [*message.get("headers", ()), *_PACKED_GUARDS]}
            await send(message)

        return told


async def _reply(send: Send, status: int, reason: str, headers: dict[str, str]) -> None:
    body = json.dumps({"detail": reason}).encode()
    given = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    packed = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": packed})
    await send({"type": "http.response.body", "body": body})


async def deny(
    scope: Scope, receive: Receive, send: Send, status: int, reason: str, headers: dict[str, str] | None = None
) -> None:
    """Refuse a WebSocket: with a status where the server can, else by closing it."""
    if DENIAL not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return

    async def renamed(message: Any) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await _reply(renamed, status, reason, headers or {})
