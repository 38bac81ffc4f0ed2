"""The HTTP routes of a server; each requires a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from driftlab.errors import DriftlabError, RequestError
from driftlab.platform.field.messages import FORMAT, MAX_REPORT_BYTES, check_format
from driftlab.platform.field.request import SessionRequest, faults_of
from driftlab.platform.results.board.page import render
from driftlab.serve_apps import predicting
from driftlab.serve_apps.access import NO_SESSION, AnyHub, Opener, Owner, Session, find_session, hub_of, read_body
from driftlab.serve_apps.batching import ImageBatches
from driftlab.serve_apps.demo import DemoDevice
from driftlab.serve_apps.guard import AccessMiddleware, deny
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.images import image_of
from driftlab.serve_apps.live import exchange
from driftlab.serve_apps.quotas import QuotaExceeded
from driftlab.serve_apps.replies import BINARY, RETRY_AFTER, refusal_of
from driftlab.serve_apps.sessions import SessionRegistry
from driftlab.serve_apps.tokens import token_of

MAX_HOLD_S = 30.0


# Routes ---------------------------------------------------------------------------------------------------------------


async def healthz(hub: AnyHub) -> JSONResponse:
    """Return whether the server is running, stopping or broken; every token may request it."""
    status = "draining" if hub.draining else "ok" if hub.is_working else "broken"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


async def metrics(request: Request, hub: Owner) -> Response:
    """Return the server's counters in the format of Prometheus."""
    return Response(await run_in_threadpool(hub.meters.text), media_type=CONTENT_TYPE_LATEST)


async def live(socket: WebSocket, name: str, after: Annotated[int, Query(ge=0)] = 0) -> None:
    """Receive uploads and send results over a WebSocket."""
    session = find_session(socket.scope, name)
    if session is None:
        await deny(socket.scope, socket.receive, socket.send, 404, NO_SESSION)
        return
    hub = hub_of(socket)
    try:
        with hub.quotas.socket(name):
            await exchange(socket, session, hub, after, partial(hub.rates.allow, token_of(socket.scope)))
    except QuotaExceeded as error:
        await deny(socket.scope, socket.receive, socket.send, 429, str(error), RETRY_AFTER)


async def page(hub: Owner) -> HTMLResponse:
    """Return the live page."""
    return HTMLResponse(render("live.html.j2", Path(__file__).parent))


async def openapi(request: Request, hub: Owner) -> dict[str, Any]:
    """Return the description of all routes."""
    description: dict[str, Any] = request.app.openapi()
    return description | {"paths": {**description["paths"], predicting.PATH: {"post": predicting.DESCRIPTION}}}


async def list_sessions(hub: Owner) -> dict[str, Any]:
    """Return the state of every session and its device by its id."""
    return hub.states() | await hub.elsewhere()


async def open_session(
    hub: Opener, asked: SessionRequest, format: Annotated[int, Query()] = FORMAT
) -> dict[str, str | int]:
    """Open a session and return its token, which no other reply contains; may train the network first.

    A device of another version of the protocol is refused here, and not at its first upload.
    """
    check_format(format)
    # No thread of the pool waits for the training, since other routes need them. A client that leaves cancels nothing.
    name, token = await asyncio.shield(asyncio.wrap_future(hub.begin_opening(asked)))
    return {"id": name, "token": token, "weights": f"/sessions/{name}/weights", "format": FORMAT}


async def status(session: Session) -> dict[str, Any]:
    """Return the state and the current plan of a session."""
    return session.status()


async def weights(session: Session) -> Response:
    """Return the initial weights as safetensors."""
    return Response(session.weights, media_type=BINARY)


async def source_summary(session: Session) -> Response:
    """Return the statistics of the training data that the adaptation uses, as safetensors."""
    return Response(await run_in_threadpool(session.source_summary), media_type=BINARY)


async def rounds(session: Session) -> list[dict[str, Any]]:
    """Return the training rounds with the columns of the table of updates."""
    return session.history()


async def timeline(session: Session) -> dict[str, Any]:
    """Return events and scores over time, and the classes and kinds of images of the newest sample."""
    return await run_in_threadpool(session.events)


async def report(request: Request, session: Session) -> Response:
    """Store a report of the device: time, frame rate, latency and score as a JSON list."""
    session.report(await read_body(request.receive, MAX_REPORT_BYTES))
    return Response()


async def upload(request: Request, session: Session) -> Response:
    """Store one upload: a header that lists its frames, then the bytes of the codec."""
    body = await read_body(request.receive, hub_of(request).limits.body_bytes)
    return Response(str(await run_in_threadpool(session.upload, body)), media_type="text/plain")


async def updates(
    hub: AnyHub,
    session: Session,
    after: Annotated[int, Query(ge=0)] = 0,
    hold_s: Annotated[float, Query(ge=0, le=MAX_HOLD_S)] = 0.0,
) -> Response:
    """Return the results after a number; if there are none, wait for one up to `hold_s` seconds."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + hold_s
    while True:
        seen, left_s = session.news.count, until_s - loop.time()
        results = await run_in_threadpool(session.results, after)
        if results is None:
            raise HTTPException(410, "these results were deleted; request all weights")
        if results[0] or left_s <= 0 or session.closed or hub.draining:
            return Response(results[0], media_type=BINARY)
        await session.news.wait(seen, left_s)


async def resync(hub: AnyHub, session: Session, name: str) -> Response:
    """Request a result with all weights; return the number of the newest result before it."""
    hub.quotas.resync(name)
    return Response(str(session.ask_all()), media_type="text/plain")


async def image(session: Session, kind: str) -> Response:
    """Return the newest sample, its prediction or its labels as PNG."""
    data = None if session.shown is None else await run_in_threadpool(image_of, session.shown, kind)
    if data is None:
        raise HTTPException(404, "this image does not exist yet")
    return Response(data, media_type="image/png")


async def drop(request: Request, session: Session, name: str) -> dict[str, str]:
    """End a session and delete its files."""
    await run_in_threadpool(hub_of(request).drop, name)
    return {"dropped": name}


async def revoke(session: Session, hub: Owner, name: str) -> dict[str, str]:
    """Refuse the token of a session's device from now on, and end the session; its files stay."""
    await run_in_threadpool(hub.revoke, name)
    return {"revoked": name}


async def start_demo(
    request: Request, hub: Owner, seconds: Annotated[float, Body(ge=1, le=3600, embed=True)] = 300.0
) -> dict[str, Any]:
    """Start a demo device on the server's computer."""
    demo: DemoDevice = request.app.state.demo
    scheme = "https" if hub.cert else "http"
    port = request.scope["server"][1]  # that of the request is chosen by the client
    started = partial(demo.start, f"{scheme}://127.0.0.1:{port}", hub.enrolment, seconds, hub.cert)
    return {"running": await run_in_threadpool(started)}


async def stop_demo(request: Request, hub: Owner) -> dict[str, Any]:
    """Stop the demo device."""
    demo: DemoDevice = request.app.state.demo
    return {"running": await run_in_threadpool(demo.stop)}


ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/healthz", healthz),
    ("GET", "/metrics", metrics),
    ("GET", "/", page),
    ("GET", "/openapi.json", openapi),
    ("GET", "/sessions", list_sessions),
    ("POST", "/sessions", open_session),
    ("GET", "/sessions/{name}", status),
    ("DELETE", "/sessions/{name}", drop),
    ("DELETE", "/sessions/{name}/token", revoke),
    ("GET", "/sessions/{name}/weights", weights),
    ("GET", "/sessions/{name}/source_summary", source_summary),
    ("GET", "/sessions/{name}/rounds", rounds),
    ("GET", "/sessions/{name}/timeline", timeline),
    ("POST", "/sessions/{name}/report", report),
    ("POST", "/sessions/{name}/uploads", upload),
    ("GET", "/sessions/{name}/updates", updates),
    ("POST", "/sessions/{name}/resync", resync),
    ("GET", "/sessions/{name}/images/{kind}", image),
    ("POST", "/demo", start_demo),
    ("DELETE", "/demo", stop_demo),
)
EXTRA = {  # of the description of a route
    "/sessions/{name}/uploads": {"requestBody": {"required": True, "content": {BINARY: predicting.BYTES}}}
}


class ServerApp:
    """The application of a server: checks access, predicts, and has all other routes in `api`."""

    def __init__(self, hub: Callable[[], SessionRegistry], child_networks: int = 0) -> None:
        """Call `hub` per request, so that it may be created later; `child_networks` is that of `ImageBatches`."""

        def charge(session: HostedSession, cpu_s: float) -> None:
            hub().quotas.charge_processor(session.folder.name, cpu_s)

        self.api, self.batches = _build_api(), ImageBatches(charge, child_networks)
        self._entry = AccessMiddleware(predicting.PredictionRoute(self.api, self.batches), hub)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entry(scope, receive, send)


def _build_api() -> FastAPI:
    app = FastAPI(title="driftlab", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.demo = DemoDevice()
    for method, path, function in ROUTES:
        app.add_api_route(path, function, methods=[method], response_model=None, openapi_extra=EXTRA.get(path))
    app.add_exception_handler(DriftlabError, _reply_refused)
    app.add_exception_handler(RequestValidationError, _reply_invalid)
    app.add_api_websocket_route("/sessions/{name}/live", live)
    return app


async def _reply_invalid(request: Request, error: Any) -> Response:
    """List the faults of a request by their places in its body or query."""
    details = [{**one, "loc": one["loc"][1:] or one["loc"]} for one in error.errors()]
    broken = next((one["ctx"]["error"] for one in details if one["type"] == "json_invalid"), None)
    text = faults_of(details) if broken is None else f"the body is no JSON: {broken}"
    return await _reply_refused(request, RequestError(text))


async def _reply_refused(request: Request, error: Exception) -> Response:
    status, body, headers = refusal_of(error)
    return Response(body, status, headers, "application/json")
