"""HTTP client of a device: counts bytes, and separates an unavailable server from a refused request."""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from driftlab.errors import DriftlabError, RequestError, WireError, first_line, shortened
from driftlab.platform.core.documents import read_json

TIMEOUT_S = 40.0  # longer than a long poll of the server
BUILD_S = 900.0  # for a request that makes the server train a network
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 15.0
MAX_AFTER_S = 120.0  # that a server may let a device wait
SECONDS = re.compile(r"[0-9]{1,9}")  # in the header Retry-After
MAX_REPLY_BYTES = 64 * 2**20  # of a reply, unless the request allows more
MAX_HEAD_BYTES = 64 * 2**10  # of the headers of a reply
CHUNK_BYTES, SLOW_S, MIN_BYTES_PER_S = 64 * 2**10, 60.0, 100.0  # a reply that takes longer must not be slower
TOKEN = re.compile(r"[!-~]+( [!-~]+)*")
RETRY_STATUSES = (429, 502, 503, 504, 408)


class ServerUnavailable(DriftlabError):
    """The server is unreachable or at its limit; the request may be repeated later."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class SessionExpired(DriftlabError):
    """The server has dropped the requested messages."""


@dataclass
class SocketBytes:
    """Bytes of a device's sockets, including HTTP headers."""

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
    """A reply with the number of bytes of its header."""

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
    """A file that adds the length of each line to `head_bytes` of a reply."""

    def __init__(self, file: Any, reply: _CountedReply) -> None:
        self._file, self._reply = file, reply

    def readline(self, *limit: int) -> bytes:
        line: bytes = self._file.readline(*limit)
        self._reply.head_bytes += len(line)
        if self._reply.head_bytes > MAX_HEAD_BYTES:
            raise WireError(f"the headers of a reply have more than {MAX_HEAD_BYTES} bytes")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _CountedConnection(http.client.HTTPConnection):
    """A connection that counts the bytes it sends."""

    response_class = _CountedReply
    sent_bytes = 0

    def send(self, data: Any) -> None:
        self.sent_bytes += len(data)
        super().send(data)


class _CountedTlsConnection(http.client.HTTPSConnection):
    """A TLS connection that counts the bytes it sends, before encryption."""

    response_class = _CountedReply
    sent_bytes = 0

    def send(self, data: Any) -> None:
        self.sent_bytes += len(data)
        super().send(data)


@dataclass
class Client:
    """A connection to a server, for one thread."""

    url: str
    token: str
    counted: SocketBytes = field(default_factory=SocketBytes)
    timeout_s: float = TIMEOUT_S
    server_ahead_s: float | None = None  # date of the server's newest reply less the monotonic clock here
    _connection: Any = None

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise RequestError(f"'{shortened(self.url)}' is not the address of a server. Use http://HOST:PORT.")
        if not TOKEN.fullmatch(self.token):
            raise RequestError("The token is empty or has characters that tokens do not have. Copy it from the server.")

    def another(self, token: str | None = None) -> Client:
        """Return a client for another thread or token that adds to the same byte counts."""
        return Client(self.url, token or self.token, self.counted)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        kind: str = "application/octet-stream",
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> bytes:
        """Send a request and return the body of the reply.

        If the request may be repeated later, this raises ServerUnavailable. A reply of more than `max_bytes`
        raises WireError before all of it is read.
        """
        head = {"Authorization": f"Bearer {self.token}"} | ({} if body is None else {"Content-Type": kind})
        used = self._connection is not None
        try:
            reply, data = self._exchange(method, path, body, head, max_bytes)
        except ServerUnavailable as error:
            if not used or isinstance(error.__cause__, TimeoutError):
                raise
            reply, data = self._exchange(
                method, path, body, head, max_bytes
            )  # the server may have closed an idle connection
        return self._checked_body(reply, data, path)

    def _exchange(
        self, method: str, path: str, body: bytes | None, head: dict[str, str], max_bytes: int
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request and read the whole reply; an error closes the connection, so a retry reconnects."""
        connection = self._connection or self._connect()
        before = connection.sent_bytes
        try:
            connection.request(method, path, body, head)
            reply = connection.getresponse()
            data = _read(reply, max_bytes)
            self.counted.add(connection.sent_bytes - before, reply.head_bytes + len(data))
        except (OSError, http.client.HTTPException) as error:
            self.counted.add(connection.sent_bytes - before, 0)
            self.close()
            fix = "check the address, or start the server with `driftlab serve`"
            raise ServerUnavailable(f"{self.url} does not respond ({first_line(error)}): {fix}") from error
        except WireError as error:
            self.counted.add(connection.sent_bytes - before, 0)
            self.close()
            raise WireError(f"{self.url} is not a driftlab server: {error}") from error
        if (date_s := _date_of(reply)) is not None:
            self.server_ahead_s = date_s - time.monotonic()
        if reply.will_close:
            self.close()
        return reply, data

    def ask_json(self, method: str, path: str, document: Any = None) -> Any:
        """Send a document as JSON and return the JSON of the reply."""
        body = None if document is None else json.dumps(document).encode()
        reply = self.ask(method, path, body, kind="application/json")
        try:
            return read_json(reply.decode())
        except ValueError as error:
            raise WireError(f"{self.url} is not a driftlab server: the reply to {path} is not JSON") from error

    @property
    def server_s(self) -> float | None:
        """Return the server's date, to a second; None before its first reply."""
        return None if self.server_ahead_s is None else self.server_ahead_s + time.monotonic()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> Any:
        parts = urlsplit(self.url)
        connect = _CountedTlsConnection if parts.scheme == "https" else _CountedConnection
        self._connection = connect(parts.hostname or "", parts.port, timeout=self.timeout_s)
        return self._connection

    def _checked_body(self, reply: http.client.HTTPResponse, data: bytes, path: str) -> bytes:
        if reply.status < 300:
            return data
        text = shortened(data.decode("utf-8", "replace"), 300)
        if reply.status in RETRY_STATUSES or reply.status >= 500:
            after = reply.getheader("Retry-After") or ""
            raise ServerUnavailable(
                f"{path}: {reply.status} {text}", min(float(after), MAX_AFTER_S) if SECONDS.fullmatch(after) else None
            )
        if reply.status == 410:
            raise SessionExpired(text)
        raise RequestError(f"The server refuses {path}: {reply.status} {text}")


def _read(reply: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Return the body of a reply; raise WireError if it is too large, and OSError if it is too slow."""
    chunks, size, started_s = [], 0, time.monotonic()
    while chunk := reply.read1(CHUNK_BYTES):
        size += len(chunk)
        chunks.append(chunk)
        if size > max_bytes:
            raise WireError(f"a reply has more than {max_bytes} bytes")
        if (took_s := time.monotonic() - started_s) > SLOW_S and size < MIN_BYTES_PER_S * took_s:
            raise OSError(f"{size} bytes arrived in {took_s:.0f} s")
    if reply.length:
        raise http.client.IncompleteRead(b"", reply.length)
    reply.close()  # else the connection would not take another request, as `read1` leaves the reply open
    return b"".join(chunks)


def _date_of(reply: http.client.HTTPResponse) -> float | None:
    """Return the server's clock at a reply; None without a readable date."""
    try:
        return parsedate_to_datetime(reply.getheader("Date") or "").timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _is_address(url: str) -> bool:
    """Return whether a URL is HTTP or HTTPS with a host and a port that sockets accept, and nothing else."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    return parts.scheme in ("http", "https") and bool(host) and not rest


@dataclass
class Backoff:
    """Waiting times between retries, doubled each time; jitter spreads the devices of a fleet."""

    tries: int = 0

    def next_s(self, error: ServerUnavailable) -> float:
        self.tries += 1
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.tries - 1))
        return max(wait_s, error.after_s or 0.0) * random.uniform(0.75, 1.25)
