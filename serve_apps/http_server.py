"""HTTP server in the process that hosts the sessions.

Ray Serve's proxy is an additional process and uses about ten times the processor time of a route. It is needed on a
cluster, where Ray decides on which computer a replica runs, and where replicas cannot share a port.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from driftlab.serve_apps.repeating import MAX_HEAD_BYTES, RepeatingProtocol

HEADER_TIMEOUT_S = 20.0  # for all headers of a request
MAX_HEADERS = 64  # of a request
MAX_CONNECTIONS = 4000
MAX_UNKNOWN, MAX_UNKNOWN_OF_ADDRESS = 1000, 100  # connections that have not sent a valid token yet
MAX_SOCKET_BYTES, MAX_SOCKET_QUEUE = 8 * 2**20, 1  # of a message on a WebSocket; messages that wait to be read
ACCEPT = "driftlab.accept"  # ASGI extension: a function that marks the connection as that of a valid token
BACKLOG, ACCEPTED = 512, 16  # connections that wait to be accepted; most of them accepted before other work is done
PORT_TIMEOUT_S, PORT_INTERVAL_S = 15.0, 0.05  # for a previous process to release the port; between attempts
START_TIMEOUT_S = 30.0
REFUSED_S = 1.0  # that a connection stays open, unread, after such headers: its client then opens few others
HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


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

    def __init__(
        self, app: ASGIApp, where: ServerAddress, protocol: Callable[..., Any] | None = None, is_shared: bool = False
    ) -> None:
        """Use `protocol` for connections; if the port is shared, other processes may listen on it."""
        tls: dict[str, Any] = {"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {}
        listener = listener_of(where, is_shared)
        self.port: int = listener.getsockname()[1]
        unknown = UnknownConnections()
        config = uvicorn.Config(
            unknown.marking(app),
            interface="asgi3",
            http=partial(protocol or LimitedProtocol, unknown),  # type: ignore[arg-type]
            ws_max_size=MAX_SOCKET_BYTES,
            ws_max_queue=MAX_SOCKET_QUEUE,
            ws_per_message_deflate=False,  # a compressed message could be a thousand times as large as it seems
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            backlog=ACCEPTED,  # asyncio accepts as many at once
            **tls,
        )
        self._server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._server.run, args=([listener],), name="door", daemon=True)
        self.thread.start()
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and self.thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)
        listener.listen(BACKLOG)  # asyncio has lowered it

    @property
    def is_working(self) -> bool:
        return self.thread.is_alive()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the thread."""
        return self._server.servers[0].get_loop()

    def protocol(self, **named: Any) -> asyncio.Protocol:
        """Return the protocol object of a new connection, as uvicorn makes it."""
        config, state = self._server.config, self._server.server_state
        made: Any = config.http_protocol_class
        return made(config=config, server_state=state, app_state=self._server.lifespan.state, **named)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the port and every connection."""
        self._server.should_exit = self._server.force_exit = True
        self.thread.join()


class UnknownConnections:
    """Connections without a valid token so far; above a limit the oldest are closed."""

    def __init__(self) -> None:
        self._connections: OrderedDict[tuple[str, int], Any] = OrderedDict()  # transports by address and port
        self._of_address: Counter[str] = Counter()

    def add(self, client: tuple[str, int], transport: Any) -> None:
        """Add a new connection; close the oldest one of its address, or of all, if there are too many."""
        self._connections[client] = transport
        self._of_address[client[0]] += 1
        if self._of_address[client[0]] > MAX_UNKNOWN_OF_ADDRESS:
            self._close(next(one for one in self._connections if one[0] == client[0]))
        elif len(self._connections) > MAX_UNKNOWN:
            self._close(next(iter(self._connections)))

    def drop(self, client: tuple[str, int] | None) -> None:
        """Remove a connection that has ended or has sent a valid token."""
        if client is not None and self._connections.pop(client, None) is not None:
            self._of_address[client[0]] -= 1
            self._of_address += Counter()  # without zeros

    def marking(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose connections have the extension `ACCEPT`."""

        def marked(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            client = scope.get("client")
            accept = partial(self.drop, None if client is None else tuple(client))
            scope["extensions"] = {**(scope.get("extensions") or {}), ACCEPT: accept}
            return app(scope, receive, send)

        return marked

    def _close(self, client: tuple[str, int]) -> None:
        transport = self._connections[client]
        self.drop(client)
        transport.abort()


def accept_connection(scope: Scope) -> None:
    """Mark a connection as that of a valid token, if this server is in front of the application."""
    (scope.get("extensions") or {}).get(ACCEPT, lambda: None)()


class LimitedProtocol(RepeatingProtocol):
    """Closes connections whose request headers are too slow, too many or too long."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _refused = False

    def __init__(self, unknown: UnknownConnections, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unknown = unknown

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is not None:
            self._unknown.add(self.client, transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._await_headers()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) == MAX_HEADERS:
            self._stop_parsing()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._head_bytes = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._stop_parsing()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, unless it was refused or the connection is closing already."""
        if not self._refused and not self.transport.is_closing():
            super().send_400_response(msg)

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to uvicorn's WebSocket protocol, and observe its end there."""
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        lost = protocol.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            self._unknown.drop(self.client)
            lost(exc)

        protocol.connection_lost = connection_lost

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._unknown.drop(self.client)
        super().connection_lost(exc)

    def _stop_parsing(self) -> None:
        self._refuse_head()
        raise ValueError("the parser must stop here")

    def _refuse_head(self) -> None:
        if not self._refused and not self.transport.is_closing():
            self._refused = True
            self.transport.write(HEAD_TOO_LARGE)
            self.transport.pause_reading()
            self.loop.call_later(REFUSED_S, self.transport.close)

    def _await_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def listener_of(where: ServerAddress, is_shared: bool = False) -> socket.socket:
    """Return a socket on the port; retry, since a killed process may hold the port for seconds.

    Several processes of a user may listen on a shared port.
    """
    until_s = time.monotonic() + PORT_TIMEOUT_S
    while True:
        try:
            return socket.create_server((where.host, where.port), backlog=BACKLOG, reuse_port=is_shared)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(PORT_INTERVAL_S)
