"""HTTP from a device to its server: counted bytes, and answers to every way in which a server can be away."""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from driftlab.errors import DriftlabError, RequestError, WireError, first_line, shortened
from driftlab.platform.core.documents import read_json

TIMEOUT_S = 40.0  # longer than the server holds a long poll
BUILD_S = 900.0  # for a server to train a network first
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
TOKEN = re.compile(r"[!-~]+( [!-~]+)*")
AWAY = (429, 502, 503, 504, 408)


class ServerAway(DriftlabError):
    """The server does not answer now, or has no room; try again later."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class SessionGone(DriftlabError):
    """The server no longer has the messages that the device asks for."""


@dataclass
class SocketBytes:
    """Bytes of a device's sockets, HTTP included."""

    up: int = 0
    down: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def both(self) -> tuple[int, int]:
        with self.lock:
            return self.up, self.down

    def add(self, up: int, down: int) -> None:
        with self.lock:
            self.up, self.down = self.up + up, self.down + down


class _CountedReply(http.client.HTTPResponse):
    """A reply that knows how many bytes its head had."""

    head_bytes = 0

    def begin(self) -> None:
        start = self.fp
        self.fp = _CountedLines(start, self)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if isinstance(self.fp, _CountedLines):
                self.fp = start


class _CountedLines:
    """Counts the lines of a reply's head."""

    def __init__(self, file: Any, reply: _CountedReply) -> None:
        self._file, self._reply = file, reply

    def readline(self, *limit: int) -> bytes:
        line: bytes = self._file.readline(*limit)
        self._reply.head_bytes += len(line)
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _CountedConnection(http.client.HTTPConnection):
    """A connection that knows how many bytes it sent."""

    response_class = _CountedReply
    sent_bytes = 0

    def send(self, data: Any) -> None:
        self.sent_bytes += len(data)
        super().send(data)


class _CountedTlsConnection(http.client.HTTPSConnection):
    """The same over TLS, before encryption."""

    response_class = _CountedReply
    sent_bytes = 0

    def send(self, data: Any) -> None:
        self.sent_bytes += len(data)
        super().send(data)


@dataclass
class Client:
    """One connection, for one thread."""

    url: str
    token: str
    counted: SocketBytes = field(default_factory=SocketBytes)
    timeout_s: float = TIMEOUT_S
    _line: Any = None

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise RequestError(f"'{shortened(self.url)}' is no address of a server; give http://HOST:PORT.")
        if not TOKEN.fullmatch(self.token):
            raise RequestError("The token is none of a server: it has characters that no token has, or none at all.")

    def another(self, token: str | None = None) -> Client:
        """Return a client for another thread, or with another token, whose bytes count with these."""
        return Client(self.url, token or self.token, self.counted)

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, kind: str = "application/octet-stream"
    ) -> bytes:
        """Send one request; raise ServerAway if it should be repeated later."""
        head = {"Authorization": f"Bearer {self.token}"} | ({} if body is None else {"Content-Type": kind})
        used = self._line is not None
        try:
            reply, data = self._exchange(method, path, body, head)
        except ServerAway as error:
            if not used or isinstance(error.__cause__, TimeoutError):
                raise
            reply, data = self._exchange(method, path, body, head)  # servers close connections that were idle
        return self._checked(reply, data, path)

    def _exchange(
        self, method: str, path: str, body: bytes | None, head: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request on the connection and read the reply; every request may be repeated."""
        line = self._line or self._connect()
        before = line.sent_bytes
        try:
            line.request(method, path, body, head)
            reply = line.getresponse()
            data: bytes = reply.read()
            self.counted.add(line.sent_bytes - before, reply.head_bytes + len(data))
        except (OSError, http.client.HTTPException) as error:
            self.counted.add(line.sent_bytes - before, 0)
            self.close()
            raise ServerAway(f"{self.url} does not answer: {first_line(error)}") from error
        if reply.will_close:
            self.close()
        return reply, data

    def ask_json(self, method: str, path: str, document: Any = None) -> Any:
        """Send and receive JSON."""
        body = None if document is None else json.dumps(document).encode()
        reply = self.ask(method, path, body, kind="application/json")
        try:
            return read_json(reply.decode())
        except ValueError as error:
            raise WireError(f"{self.url} is no server of driftlab: {path} answers no JSON") from error

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    def _connect(self) -> Any:
        parts = urlsplit(self.url)
        connect = _CountedTlsConnection if parts.scheme == "https" else _CountedConnection
        self._line = connect(parts.hostname or "", parts.port, timeout=self.timeout_s)
        return self._line

    def _checked(self, reply: http.client.HTTPResponse, data: bytes, path: str) -> bytes:
        if reply.status < 300:
            return data
        told = shortened(data.decode("utf-8", "replace"), 300)
        if reply.status in AWAY or reply.status >= 500:
            after = reply.getheader("Retry-After")
            raise ServerAway(f"{path}: {reply.status} {told}", float(after) if after and after.isdigit() else None)
        if reply.status == 410:
            raise SessionGone(told)
        raise RequestError(f"The server refuses {path}: {reply.status} {told}")


def _is_address(url: str) -> bool:
    """Tell whether sockets accept the host and the port of an address."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host)


@dataclass
class Backoff:
    """Waiting times between tries: doubled, with jitter, so that devices do not come back all at once."""

    tries: int = 0

    def next_s(self, error: ServerAway) -> float:
        self.tries += 1
        usual_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.tries - 1))
        return max(usual_s, error.after_s or 0.0) * random.uniform(0.75, 1.25)
