"""HTTP server in the process that hosts the sessions.

Ray Serve's proxy is an additional process and uses about ten times the processor time of a route. It is needed only on
a cluster, where Ray decides on which computer the replica runs.
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

HEADER_TIMEOUT_S = 20.0  # for all headers of a request
MAX_CONNECTIONS = 4000
PORT_TIMEOUT_S, PORT_INTERVAL_S = 15.0, 0.05  # for a previous process to release the port; between attempts
START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ServerAddress:
    """Host, port and certificate of a server."""

    host: str
    port: int
    cert: str = ""  # files for TLS
    key: str = ""

    @property
    def url(self) -> str:
        return f"{'https' if self.cert else 'http'}://{self.host}:{self.port}"


class HttpServer:
    """A server that runs in a thread until it is closed."""

    def __init__(self, app: ASGIApp, where: ServerAddress) -> None:
        tls: dict[str, Any] = {"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {}
        listener = listener_of(where)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=HeaderTimeoutProtocol,
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            **tls,
        )
        self._server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._server.run, args=([listener],), name="door", daemon=True)
        self.thread.start()
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and self.thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)

    def close(self) -> None:
        """Close the port and every connection."""
        self._server.should_exit = self._server.force_exit = True
        self.thread.join()


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """Closes connections whose request headers do not arrive within `HEADER_TIMEOUT_S`."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def on_message_begin(self) -> None:
        self._await_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def listener_of(where: ServerAddress) -> socket.socket:
    """Return a socket on the port; retry, since a killed process may hold the port for seconds."""
    until_s = time.monotonic() + PORT_TIMEOUT_S
    while True:
        try:
            return socket.create_server((where.host, where.port), backlog=512)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(PORT_INTERVAL_S)
