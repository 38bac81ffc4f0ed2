"""The WebSocket of a session: uploads in, acknowledgements and results out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool

from driftlab.errors import DriftlabError
from driftlab.platform.field.websocket import ACK, GONE, REFUSED, RESULTS
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.sessions import Hub

LOOK_S = 20.0  # between two looks whether the session has ended
SEND_S = 30.0  # after which a device that does not read is left


async def exchange(
    socket: WebSocket, session: HostedSession, hub: Hub, after: int, allowed: Callable[[], bool]
) -> None:
    """Take uploads and send results until either side ends."""
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


async def _receive(socket: WebSocket, session: HostedSession, hub: Hub, allowed: Callable[[], bool]) -> None:
    """Acknowledge uploads; what is refused ends the line, and the device hears the reason over HTTP."""
    while True:
        body = await socket.receive_bytes()
        if len(body) > hub.limits.body_bytes or hub.draining or not allowed():
            return
        try:
            number = await run_in_threadpool(session.upload, body)
        except DriftlabError:
            await asyncio.wait_for(socket.send_bytes(REFUSED), SEND_S)
            return
        await asyncio.wait_for(socket.send_bytes(ACK + str(number).encode()), SEND_S)


async def _send(socket: WebSocket, session: HostedSession, hub: Hub, after: int) -> None:
    """Send results as they come."""
    while not (session.ended or hub.draining):
        seen, newest, found = session.news.count, session.progress.number, session.results(after)
        if found is None:
            await asyncio.wait_for(socket.send_bytes(GONE), SEND_S)
            return
        if found:
            after = max(after, newest)
            await asyncio.wait_for(socket.send_bytes(RESULTS + found), SEND_S)
        await session.news.wait(seen, LOOK_S)
