"""The HTTP surface: routes over a hub, each behind a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import HTTPConnection

from driftlab.errors import DriftlabError, RequestError, WireError
from driftlab.platform.field.request import SessionAsked
from driftlab.serve_apps.batching import ImageBatches
from driftlab.serve_apps.demo import DemoDevice
from driftlab.serve_apps.guard import RETRY_AFTER, Guard, deny
from driftlab.serve_apps.hosting import Busy, HostedSession
from driftlab.serve_apps.live import exchange
from driftlab.serve_apps.pictures import picture_of
from driftlab.serve_apps.sessions import Full, Hub
from driftlab.serve_apps.tokens import ASK_TOKEN, token_of

PAGE = Path(__file__).parent / "page.html"
NO_SESSION = "there is no such session"
MOST_HOLD_S = 30.0
BINARY = "application/octet-stream"


def hub_of(asked: HTTPConnection) -> Hub:
    hub: Hub = asked.app.state.hub()
    return hub


async def any_hub(request: Request) -> Hub:
    """Let every token pass; not a plain function, which would wait for a thread of its own."""
    return hub_of(request)


async def owner(request: Request) -> Hub:
    """Let the server's own token pass."""
    hub = hub_of(request)
    if not hub.is_owner(token_of(request)):
        raise HTTPException(401, "give the server's token", ASK_TOKEN)
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method != "GET":
        raise HTTPException(403, "another site's page may not do this")
    return hub


async def session_of(request: Request, name: str) -> HostedSession:
    """Let the session's token or the server's pass; for any other session's token this one does not exist."""
    if hub_of(request).session_of(token_of(request)) is None:
        await owner(request)
    session = _found(request, name)
    if session is None:
        raise HTTPException(404, NO_SESSION)
    return session


def _found(asked: HTTPConnection, name: str) -> HostedSession | None:
    hub = hub_of(asked)
    own = hub.session_of(token_of(asked))
    return hub.sessions.get(name) if own in (None, name) else None


AnyHub = Annotated[Hub, Depends(any_hub)]
Owner = Annotated[Hub, Depends(owner)]
Session = Annotated[HostedSession, Depends(session_of)]


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Read a body up to a limit; a longer one is not read to its end."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            raise HTTPException(413, f"the body may have {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


# Routes ---------------------------------------------------------------------------------------------------------------


async def healthz(hub: AnyHub) -> JSONResponse:
    """Say that the server runs, or is about to stop, to every token."""
    status = "draining" if hub.draining else "ok" if hub.is_working else "broken"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


async def metrics(request: Request, hub: Owner) -> Response:
    """Return what the server counts, for Prometheus."""
    return Response(await run_in_threadpool(hub.meters.text), media_type=CONTENT_TYPE_LATEST)


async def live(socket: WebSocket, name: str, after: Annotated[int, Query(ge=0)] = 0) -> None:
    """Take uploads and send results over a WebSocket."""
    session = _found(socket, name)
    if session is None:
        await deny(socket.scope, socket.receive, socket.send, 404, NO_SESSION)
        return
    hub = hub_of(socket)
    await exchange(socket, session, hub, after, partial(hub.rates.allow, token_of(socket)))


async def page(hub: Owner) -> HTMLResponse:
    """Return the live page."""
    return HTMLResponse(PAGE.read_text(encoding="utf-8"))


async def openapi(request: Request, hub: Owner) -> dict[str, Any]:
    """Return the description of all routes."""
    described: dict[str, Any] = request.app.openapi()
    return described


async def list_sessions(hub: Owner) -> dict[str, Any]:
    """List the sessions with their states."""
    return {name: session.status() for name, session in list(hub.sessions.items())}


async def open_session(hub: Owner, asked: SessionAsked) -> dict[str, str]:
    """Open a session; its token is told here and never again. The network may have to be trained first."""
    name, token = await run_in_threadpool(hub.open, asked)
    return {"id": name, "token": token, "weights": f"/sessions/{name}/weights"}


async def status(session: Session) -> dict[str, Any]:
    """Return the state and the current plan of a session."""
    return session.status()


async def weights(session: Session) -> Response:
    """Return the initial weights as safetensors."""
    return Response(session.weights, media_type=BINARY)


async def pack(session: Session) -> Response:
    """Return what the adaptation needs to know of the data that the network was built on, as safetensors."""
    return Response(await run_in_threadpool(session.pack), media_type=BINARY)


async def rounds(session: Session) -> list[dict[str, Any]]:
    """List the training rounds, as in the table of updates."""
    return session.history()


async def upload(request: Request, session: Session) -> Response:
    """Take one upload: the codec's bytes after a header with their frames."""
    body = await read_body(request, hub_of(request).limits.body_bytes)
    return Response(str(await run_in_threadpool(session.upload, body)), media_type="text/plain")


async def updates(
    hub: AnyHub,
    session: Session,
    after: Annotated[int, Query(ge=0)] = 0,
    hold_s: Annotated[float, Query(ge=0, le=MOST_HOLD_S)] = 0.0,
) -> Response:
    """Return the results after a number; hold the request until there is one."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + hold_s
    while True:
        seen, left_s = session.news.count, until_s - loop.time()
        found = session.results(after)
        if found != b"" or left_s <= 0 or session.ended or hub.draining:
            break
        await session.news.wait(seen, left_s)
    if found is None:
        raise HTTPException(410, "these results were dropped; ask for every weight")
    return Response(found, media_type=BINARY)


async def resync(session: Session) -> Response:
    """Send every weight with the next result; return the number of the newest result until then."""
    return Response(str(session.ask_all()), media_type="text/plain")


async def answers(request: Request, name: str) -> Response:
    """Answer a PNG or JPEG image with one whole version of the network, which the reply names."""
    session, hub = await session_of(request, name), hub_of(request)  # itself: a dependency takes as long as the rest
    body = await read_body(request, hub.limits.image_bytes)
    answering: ImageBatches = request.app.state.answering
    with hub.meters.answer_s.time():
        document = await answering.answer(session, body)
    return Response(document, media_type="application/json")


async def picture(session: Session, kind: str) -> Response:
    """Return the newest sample, its answer or its truth as PNG."""
    found = None if session.shown is None else await run_in_threadpool(picture_of, session.shown, kind)
    if found is None:
        raise HTTPException(404, "there is no such picture yet")
    return Response(found, media_type="image/png")


async def drop(request: Request, session: Session, name: str) -> dict[str, str]:
    """End a session and remove what is kept of it."""
    await run_in_threadpool(hub_of(request).drop, name)
    return {"dropped": name}


async def start_demo(
    request: Request, hub: Owner, seconds: Annotated[float, Body(ge=1, le=3600, embed=True)] = 300.0
) -> dict[str, Any]:
    """Start a device on this machine, in a process of its own."""
    demo: DemoDevice = request.app.state.demo
    scheme = "https" if hub.cert else "http"
    url = f"{scheme}://127.0.0.1:{request.url.port}"  # never another host that the request may name
    return {"running": demo.start(url, token_of(request), seconds, hub.cert)}


async def stop_demo(request: Request, hub: Owner) -> dict[str, Any]:
    """Stop the device on this machine."""
    demo: DemoDevice = request.app.state.demo
    return {"running": await run_in_threadpool(demo.stop)}


ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", "/sessions/{name}/answer", answers),  # the most frequent one first: routes are tried in order
    ("GET", "/healthz", healthz),
    ("GET", "/metrics", metrics),
    ("GET", "/", page),
    ("GET", "/openapi.json", openapi),
    ("GET", "/sessions", list_sessions),
    ("POST", "/sessions", open_session),
    ("GET", "/sessions/{name}", status),
    ("DELETE", "/sessions/{name}", drop),
    ("GET", "/sessions/{name}/weights", weights),
    ("GET", "/sessions/{name}/pack", pack),
    ("GET", "/sessions/{name}/rounds", rounds),
    ("POST", "/sessions/{name}/uploads", upload),
    ("GET", "/sessions/{name}/updates", updates),
    ("POST", "/sessions/{name}/resync", resync),
    ("GET", "/sessions/{name}/pictures/{kind}", picture),
    ("POST", "/demo", start_demo),
    ("DELETE", "/demo", stop_demo),
)


BODIES = {"/sessions/{name}/uploads": (BINARY,), "/sessions/{name}/answer": ("image/png", "image/jpeg")}


def _described(path: str) -> dict[str, Any] | None:
    """Describe a body that is read as it is."""
    kinds = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in BODIES.get(path, ())}
    return {"requestBody": {"required": True, "content": kinds}} if kinds else None


def build_app(hub: Callable[[], Hub]) -> FastAPI:
    """Build the application over a hub, which need not be there yet."""
    app = FastAPI(title="driftlab", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.hub, app.state.answering, app.state.demo = hub, ImageBatches(), DemoDevice()
    for method, path, function in ROUTES:
        app.add_api_route(path, function, methods=[method], response_model=None, openapi_extra=_described(path))
    for kind, code, headers in (
        (Full, 503, RETRY_AFTER),
        (Busy, 429, RETRY_AFTER),
        (WireError, 422, {}),
        (RequestError, 422, {}),
        (DriftlabError, 500, {}),
    ):
        app.add_exception_handler(kind, partial(_refused, code=code, headers=headers))
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_api_websocket_route("/sessions/{name}/live", live)
    app.add_middleware(Guard, hub=hub)
    return app


async def _misread(request: Request, error: Any) -> JSONResponse:
    """Say what is wrong with a request without repeating it: not everything that it may hold can be written as JSON."""
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:8]]
    return JSONResponse({"detail": "; ".join(faults)}, 422)


async def _refused(request: Request, error: Exception, code: int, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, code, headers=headers)
