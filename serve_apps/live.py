"""The WebSocket of a session: receives uploads, sends acknowledgements and results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool

from driftlab.errors import DriftlabError
from driftlab.platform.field.websocket import ACK, GONE, REFUSED, RESULTS
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.sessions import SessionRegistry

POLL_INTERVAL_S = 20.0  # between checks whether the session has ended
SEND_TIMEOUT_S = 30.0  # then the connection to a device that does not read is closed


async def exchange(
    socket: WebSocket, session: HostedSession, hub: SessionRegistry, after: int, allowed: Callable[[], bool]
) -> None:
    """Receive uploads and send results until the connection or the session ends."""
    await socket.accept()
    tasks = [
        asyncio.create_task(_receive(socket, session, hub, allowed)),
        asyncio.create_task(_send(socket, session, hub, after)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it may be closed already
            await socket.close()


async def _receive(
    socket: WebSocket, session: HostedSession, hub: SessionRegistry, allowed: Callable[[], bool]
) -> None:
    """Acknowledge uploads; a refused one closes the WebSocket, and HTTP then gives the device the reason.

    A message of text is a report of the device.
    """
    while True:
        message = await socket.receive()
        body, text = message.get("bytes") or b"", message.get("text")
        gone = message["type"] == "websocket.disconnect"
        if gone or len(body) > hub.limits.body_bytes or hub.draining or not allowed():
            return
        try:
            if text is not None:
                session.report(text)
                continue
            number = await run_in_threadpool(session.upload, body)
        except DriftlabError:
            await asyncio.wait_for(socket.send_bytes(REFUSED), SEND_TIMEOUT_S)
            return
        await asyncio.wait_for(socket.send_bytes(ACK + str(number).encode()), SEND_TIMEOUT_S)


async def _send(socket: WebSocket, session: HostedSession, hub: SessionRegistry, after: int) -> None:
    """Send results as soon as there are any."""
    while not (session.closed or hub.draining):
        seen = session.news.count
        found = await run_in_threadpool(session.results, after)
        if found is None:
            await asyncio.wait_for(socket.send_bytes(GONE), SEND_TIMEOUT_S)
            return
        results, after = found
        if results:
            await asyncio.wait_for(socket.send_bytes(RESULTS + results), SEND_TIMEOUT_S)
        if after == session.progress.number:
            await session.news.wait(seen, POLL_INTERVAL_S)
