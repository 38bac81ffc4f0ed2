"""The WebSocket of a device: carries uploads, acknowledgements and results with few bytes of framing.

If it does not open or breaks, HTTP requests carry the same messages, and the device tries to open it again after them.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from driftlab.errors import WireError
from driftlab.platform.field.client import MAX_REPLY_BYTES, Client, SocketBytes

OPEN_TIMEOUT_S, CLOSE_TIMEOUT_S = 10.0, 1.0
ACK_TIMEOUT_S = 15.0  # then the upload is sent over HTTP
PING_S = 20.0  # interval of pings, and time limit of a reply
MAX_BYTES = 8 * 2**20  # of an upload; larger ones are sent over HTTP
MAX_RESULT_BYTES = MAX_REPLY_BYTES + 1  # of a message of the server: larger results come over HTTP
ACK, RESULTS, REFUSED, GONE = b"A", b"R", b"E", b"G"  # first byte of the server's messages


class _CountedSocket:
    """A socket that counts its bytes, before encryption."""

    def __init__(self, plain: socket.socket, counted: SocketBytes) -> None:
        self._plain, self._counted = plain, counted

    def sendall(self, data: Any) -> None:
        self._plain.sendall(data)
        self._counted.add(len(data), 0)

    def recv(self, size: int) -> bytes:
        data = self._plain.recv(size)
        self._counted.add(0, len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@dataclass
class Line:
    """The WebSocket of a session; one thread may receive while another one posts."""

    client: Client
    path: str  # of the session on the server
    _open: Any = None
    _leaving: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _acks: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    _posting: threading.Lock = field(default_factory=threading.Lock)  # one upload at a time

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def open(self, after: int) -> bool:
        """Connect to receive results after a number; return whether that succeeded."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        parts, self._acks = urlsplit(self.client.url), queue.SimpleQueue()  # without leftovers of an earlier connection
        try:
            plain = _connect(parts.hostname or "", parts.port, parts.scheme)
            counted: Any = _CountedSocket(plain, self.client.counted)
            connection = connect(
                f"ws://{parts.netloc}{self.path}/live?after={after}",
                sock=counted,
                additional_headers={"Authorization": f"Bearer {self.client.token}"},
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=OPEN_TIMEOUT_S,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_RESULT_BYTES,
            )
            self._leaving = contextlib.ExitStack()
            self._open = self._leaving.enter_context(connection)
        except (OSError, WebSocketException):
            return False
        return True

    def post(self, body: bytes) -> bytes | None:
        """Send an upload and return its acknowledgement; None if it must be sent over HTTP."""
        from websockets.exceptions import WebSocketException

        with self._posting:
            connection, acks = self._open, self._acks
            if connection is None or len(body) > MAX_BYTES:
                return None
            try:
                connection.send(body)
                return acks.get(timeout=ACK_TIMEOUT_S)
            except (OSError, WebSocketException, queue.Empty):
                self.close()
                return None

    def report(self, text: str) -> bool:
        """Send a report, which is not acknowledged; return False if it must be sent over HTTP."""
        from websockets.exceptions import WebSocketException

        connection = self._open
        try:
            if connection is not None:
                connection.send(text)
        except (OSError, WebSocketException):
            self.close()
            return False
        return connection is not None

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next results; empty if none arrive within `wait_s`, None if the WebSocket is closed."""
        from websockets.exceptions import WebSocketException

        connection = self._open
        if connection is None:
            return None
        try:
            message = connection.recv(timeout=wait_s)
        except TimeoutError:
            return b""
        except (OSError, WebSocketException):
            self.close()
            return None
        kind, rest = message[:1], message[1:]
        if kind == RESULTS:
            return bytes(rest)
        if kind not in (ACK, REFUSED, GONE):
            raise WireError(f"{self.client.url} is not a driftlab server: it sent {len(message)} unknown bytes")
        if kind != ACK:  # the reason follows in the reply to an HTTP request
            self.close()
            return None
        self._acks.put(bytes(rest))
        return b""

    def close(self) -> None:
        """Close the WebSocket; an upload without an acknowledgement is sent over HTTP."""
        from websockets.exceptions import WebSocketException

        connection, self._open = self._open, None
        if connection is not None:
            self._acks.put(None)
            with contextlib.suppress(OSError, WebSocketException):
                self._leaving.close()


def _connect(host: str, port: int | None, scheme: str) -> socket.socket:
    plain = socket.create_connection((host, port or (443 if scheme == "https" else 80)), OPEN_TIMEOUT_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host) if scheme == "https" else plain
