"""Serve replies that driftlab's server never sends; the token of a request selects the reply."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPLIES = (
    (200, b""),
    (200, b"<html>"),
    (200, b"\xff\xfe"),
    (200, b"[]"),
    (200, b"[" * 100_000),
    (200, b'{"id": 5}'),
    (200, b'{"id": "a", "token": "\\u2603"}'),
    (200, b'{"id": "a", "token": "b"}'),
    (200, b'{"id": "../a b", "token": "b", "uploads": "x"}'),
    (401, b"who?"),
    (404, b"no"),
    (410, b"gone"),
    (429, b"later"),
    (500, b"\x00"),
    (0, b"no HTTP\r\n\r\n"),
)


def token_of(number: int) -> str:
    """Return the token that selects a reply."""
    return f"{number:02d}" + "x" * 18


class _Handler(BaseHTTPRequestHandler):
    def _reply(self) -> None:
        number = self.headers.get("Authorization", "").removeprefix("Bearer ")[:2]
        code, body = REPLIES[int(number) % len(REPLIES) if number.isdecimal() else 0]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if code:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)
        self.close_connection = True

    do_GET = do_POST = _reply

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def foreign_server() -> Iterator[int]:
    """Serve until the block ends; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
