"""A WebSocket between a device and its server: uploads up, acknowledgements and results down, few bytes around them.

It is the quick way. Where it does not open or breaks, requests over HTTP do the same, and it is tried again after them.
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
from driftlab.platform.field.client import Client, SocketBytes

OPEN_S, CLOSE_S = 10.0, 1.0
ACKNOWLEDGE_S = 15.0  # after which an upload goes over HTTP
PING_S = 20.0  # between pings, and until one must be answered
MOST_BYTES = 8 * 2**20  # of an upload; larger ones go over HTTP
ACK, RESULTS, REFUSED, GONE = b"A", b"R", b"E", b"G"  # first byte of what the server sends


class _CountedSocket:
    """A socket whose bytes are counted, before encryption."""

    def __init__(self, line: socket.socket, counted: SocketBytes) -> None:
        self._line, self._counted = line, counted

    def sendall(self, data: Any) -> None:
        self._line.sendall(data)
        self._counted.add(len(data), 0)

    def recv(self, size: int) -> bytes:
        data = self._line.recv(size)
        self._counted.add(0, len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)


@dataclass
class Line:
    """The WebSocket of a session; one thread receives, another one may post."""

    client: Client
    path: str  # of the session
    _open: Any = None
    _leaving: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _acks: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    _one: threading.Lock = field(default_factory=threading.Lock)  # upload at a time

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def open(self, after: int) -> bool:
        """Connect, to receive results after a number; tell whether it is open."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        parts, self._acks = urlsplit(self.client.url), queue.SimpleQueue()  # nothing of a line before this one
        try:
            plain = _connected(parts.hostname or "", parts.port, parts.scheme)
            counted: Any = _CountedSocket(plain, self.client.counted)
            asked = connect(
                f"ws://{parts.netloc}{self.path}/live?after={after}",
                sock=counted,
                additional_headers={"Authorization": f"Bearer {self.client.token}"},
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=OPEN_S,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                close_timeout=CLOSE_S,
                max_size=None,
            )
            self._leaving = contextlib.ExitStack()
            self._open = self._leaving.enter_context(asked)
        except (OSError, WebSocketException):
            return False
        return True

    def post(self, body: bytes) -> bytes | None:
        """Send an upload; return its acknowledgement, None where it has to go over HTTP."""
        from websockets.exceptions import WebSocketException

        with self._one:
            line, acks = self._open, self._acks
            if line is None or len(body) > MOST_BYTES:
                return None
            try:
                line.send(body)
                return acks.get(timeout=ACKNOWLEDGE_S)
            except (OSError, WebSocketException, queue.Empty):
                self.close()
                return None

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next results; empty where none came in time, None where the line is closed."""
        from websockets.exceptions import WebSocketException

        line = self._open
        if line is None:
            return None
        try:
            told = line.recv(timeout=wait_s)
        except TimeoutError:
            return b""
        except (OSError, WebSocketException):
            self.close()
            return None
        kind, rest = told[:1], told[1:]
        if kind == RESULTS:
            return bytes(rest)
        if kind not in (ACK, REFUSED, GONE):
            raise WireError(f"{self.client.url} is no server of driftlab: it sends {len(told)} unknown bytes")
        if kind != ACK:  # HTTP says the same, with its reason
            self.close()
            return None
        self._acks.put(bytes(rest))
        return b""

    def close(self) -> None:
        """End the line; an upload that waits for its acknowledgement goes over HTTP."""
        from websockets.exceptions import WebSocketException

        line, self._open = self._open, None
        if line is not None:
            self._acks.put(None)
            with contextlib.suppress(OSError, WebSocketException):
                self._leaving.close()


def _connected(host: str, port: int | None, scheme: str) -> socket.socket:
    plain = socket.create_connection((host, port or (443 if scheme == "https" else 80)), OPEN_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host) if scheme == "https" else plain
