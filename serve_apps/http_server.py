"""The port of a server on one machine, in the process that holds the sessions.

Ray Serve's proxy is a process more, and takes about ten times the processor time of a route: it serves where a cluster
decides on which machine the replica runs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # for the head of a request to come
MOST_CONNECTIONS = 4000
TAKE_S, LOOK_S = 15.0, 0.05  # for a process before this one to leave the port, and between two looks
START_S = 30.0


@dataclass(frozen=True)
class ServerAddress:
    """Where a server listens."""

    host: str
    port: int
    cert: str = ""  # files for TLS
    key: str = ""

    @property
    def url(self) -> str:
        return f"{'https' if self.cert else 'http'}://{self.host}:{self.port}"


class Door:
    """Listens in a thread until it is closed."""

    def __init__(self, app: ASGIApp, where: ServerAddress) -> None:
        tls: dict[str, Any] = {"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {}
        listener = listener_of(where)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=HurriedProtocol,
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            **tls,
        )
        self._server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._server.run, args=([listener],), name="door", daemon=True)
        self.thread.start()
        until_s = time.monotonic() + START_S
        while not self._server.started and self.thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)

    def close(self) -> None:
        """Close the port and every connection."""
        self._server.should_exit = self._server.force_exit = True
        self.thread.join()


class HurriedProtocol(HttpToolsProtocol):
    """Leaves clients whose request's head does not come."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = None


def listener_of(where: ServerAddress) -> socket.socket:
    """Take the port, which a killed process may hold for a moment."""
    until_s = time.monotonic() + TAKE_S
    while True:
        try:
            return socket.create_server((where.host, where.port), backlog=512)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(LOOK_S)
