"""HTTP connections on which a request may repeat an earlier one, except for its body.

A camera sends image after image with the same head. The parsed form of an equal head and its route are known, so such a
request needs neither a parser nor a task. For small images that is a third of the server's time. The route of the first
request gives a function that replies to the next ones, and repeats all checks whose results may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

REPEATED = "driftlab.repeated"  # ASGI extension: a function that takes the `Replier` to requests with the same head
END = b"\r\n\r\n"  # of a head
MAX_HEAD_BYTES = 16 * 2**10  # of a request
HOLD_S = 0.05  # for the body after a head that came alone, as many clients send them
Respond = Callable[[int, bytes, bytes], None]  # sends a reply: status, lines of headers, and body
Replier = Callable[[memoryview, Respond], bool]  # takes a body; responds later, or returns False to use the usual way


@dataclass(frozen=True, slots=True)
class _Known:
    """A request that may be repeated."""

    head: bytes
    size: int  # bytes of the body
    replier: Replier


class RepeatingProtocol(HttpToolsProtocol):
    """Passes requests with the head of an earlier one to the replier that the route of that one has given."""

    _known: _Known | None = None
    _head = b""  # of the request that is parsed, if all of it came at once
    _held: asyncio.TimerHandle | None = None  # until it expires, a known head waits for its body
    _is_between_requests = True
    _is_replying = False
    _later = b""  # received since then
    _is_ending = False

    def data_received(self, data: bytes) -> None:
        known = self._known
        if self._is_replying:
            self._later += data
            self.flow.pause_reading()
        elif known is None or not self._is_idle:
            self._parse(data)
        elif self._held is not None:
            self._release()
            if not self._take(known, memoryview(data)):
                self._parse(known.head)
                self._parse(data)
        elif data == known.head:
            self._unset_keepalive_if_required()
            self._held = self.loop.call_later(HOLD_S, self._stop_holding)
        elif not (data.startswith(known.head) and self._take(known, memoryview(data)[len(known.head) :])):
            self._parse(data)

    @property
    def _is_idle(self) -> bool:
        return self._is_between_requests and (self.cycle is None or self.cycle.response_complete)

    def _parse(self, data: bytes) -> None:
        """Pass data to uvicorn; remember the head of a request that begins with them."""
        if self._is_idle and not data.strip(b"\r\n"):
            return  # an empty line begins no request, and uvicorn would end the time limit of an idle connection
        self._head = data[: data.find(END) + len(END)] if self._is_idle and END in data else b""
        super().data_received(data)

    def _take(self, known: _Known, body: memoryview) -> bool:
        """Pass a body to the replier, and return whether it has accepted it."""
        if len(body) != known.size or self.flow.write_paused:
            return False
        self._unset_keepalive_if_required()
        self._is_replying = known.replier(body, self._respond)
        return self._is_replying

    def _respond(self, status: int, head: bytes, body: bytes) -> None:
        self._is_replying = False
        if self.transport.is_closing():
            return
        lines = [b"%s: %s\r\n" % one for one in self.server_state.default_headers]
        end = b"connection: close\r\n\r\n" if self._is_ending else b"\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], *lines, head, end, body)))
        if self._is_ending:
            self.transport.close()
        self.on_response_complete()
        later, self._later = self._later, b""
        if later and not self._is_ending:
            try:
                self.data_received(later)
            except BaseException:
                self.transport.abort()  # as the event loop does
                raise

    def _stop_holding(self) -> None:
        """Pass on a head whose body is late, so that the usual limits apply."""
        self._release()
        if self._known is not None:
            self._parse(self._known.head)

    def _release(self) -> None:
        if self._held is not None:
            self._held.cancel()
        self._held = None

    def on_message_begin(self) -> None:
        self._is_between_requests = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Offer the extension to the route of a request whose head came at once."""
        head, self._head = self._head, b""
        size = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        is_plain = head.count(b"\n") == len(self.headers) + 2 and not self.expect_100_continue
        if size and is_plain and len(head) <= MAX_HEAD_BYTES:
            extensions = {REPEATED: partial(self._learn, head, size)}
            self.scope["extensions"] = extensions  # type: ignore[typeddict-item]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_between_requests = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._known, self._later = None, b""
        if self.scope is not None:
            self.scope.pop("extensions", None)  # they refer to this object
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, after the reply if one is due."""
        if self._held is not None:
            self._stop_holding()
        if self._is_replying:
            self._is_ending = True
        else:
            super().shutdown()

    def _learn(self, head: bytes, size: int, replier: Replier) -> None:
        self._known = _Known(head, size, replier)


def offer_replier(scope: Scope, replier: Replier) -> None:
    """Use a replier for requests with the same head, if this server is in front of the application."""
    (scope.get("extensions") or {}).get(REPEATED, lambda _: None)(replier)
