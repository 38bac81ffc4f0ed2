"""Access to routes: for the owner, for a device that opens a session, or for the device of a session."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Request
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Receive, Scope

from driftlab.serve_apps.guard import HUB, SESSION
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.replies import MOVED, RETRY_AFTER
from driftlab.serve_apps.sessions import SessionRegistry
from driftlab.serve_apps.tokens import TOKEN_REQUIRED, token_of

NO_SESSION = "this session does not exist"


def hub_of(connection: HTTPConnection) -> SessionRegistry:
    hub: SessionRegistry = connection.scope[HUB]
    return hub


async def any_hub(request: Request) -> SessionRegistry:
    """Accept every valid token; a coroutine, since FastAPI runs a plain function in another thread."""
    return hub_of(request)


async def owner(request: Request) -> SessionRegistry:
    """Accept the server's token only."""
    hub = hub_of(request)
    if not hub.is_owner(token_of(request.scope)):
        raise HTTPException(401, "give the server's token", TOKEN_REQUIRED)
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method != "GET":
        raise HTTPException(403, "pages of other sites must not change sessions")
    return hub


async def opener(request: Request) -> SessionRegistry:
    """Accept the enrolment token, at a limited rate, and the server's."""
    hub = hub_of(request)
    if not hub.is_enrolment(token_of(request.scope)):
        return await owner(request)
    if not hub.openings.allow(""):
        raise HTTPException(429, f"more than {hub.limits.openings:g} new sessions per second", RETRY_AFTER)
    return hub


async def session_of(request: Request, name: str) -> HostedSession:
    """Accept the session's token and the server's; any other session's token gets status 404."""
    return await session_in(request.scope, name)


async def session_in(scope: Scope, name: str) -> HostedSession:
    """Return a session that the token of a request may use."""
    if scope[SESSION] is None:
        await owner(Request(scope))
    return hosted(scope, name)


def hosted(scope: Scope, name: str) -> HostedSession:
    """Return a session of this replica; the owner's token is not checked here."""
    session = find_session(scope, name)
    if not scope[HUB].shards.holds(name) or (session is not None and session.moved):
        raise HTTPException(503, MOVED, RETRY_AFTER)
    if session is None:
        raise HTTPException(404, NO_SESSION)
    return session


def find_session(scope: Scope, name: str) -> HostedSession | None:
    """Return a session if the token is its own or none of a session."""
    session: HostedSession | None = scope[HUB].sessions.get(name) if scope[SESSION] in (None, name) else None
    return session


AnyHub = Annotated[SessionRegistry, Depends(any_hub)]
Owner = Annotated[SessionRegistry, Depends(owner)]
Opener = Annotated[SessionRegistry, Depends(opener)]
Session = Annotated[HostedSession, Depends(session_of)]


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return a body; raise at the limit without reading the rest."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise HTTPException(413, f"the body has more than {max_bytes} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
