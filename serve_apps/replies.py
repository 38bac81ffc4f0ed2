"""Replies without FastAPI, and the status of each error."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fastapi import HTTPException
from starlette.types import Send

from driftlab.errors import RequestError, WireError
from driftlab.serve_apps.hosting import SessionMoved, UploadQueueFull
from driftlab.serve_apps.quotas import QuotaExceeded
from driftlab.serve_apps.sessions import ServerFull

BINARY = "application/octet-stream"
PIXELS = "application/x-rgb"  # of images of the network's size, one after another
MOVED = "another replica hosts this session; repeat the request"
RETRY_AFTER = {"Retry-After": "2"}
STATUSES: tuple[tuple[type[Exception], int, dict[str, str]], ...] = (
    (ServerFull, 503, RETRY_AFTER),
    (SessionMoved, 503, RETRY_AFTER),
    (UploadQueueFull, 429, RETRY_AFTER),
    (QuotaExceeded, 429, RETRY_AFTER),
    (WireError, 422, {}),
    (RequestError, 422, {}),
)


def refusal_of(error: Exception) -> tuple[int, bytes, Mapping[str, str]]:
    """Return status, body and headers of the reply to a request that has failed."""
    if isinstance(error, HTTPException):
        return error.status_code, _detail(str(error.detail)), error.headers or {}
    found = next(((code, headers) for kind, code, headers in STATUSES if isinstance(error, kind)), (500, {}))
    return found[0], _detail(str(error)), found[1]


async def refuse(send: Send, status: int, reason: str, headers: Mapping[str, str]) -> None:
    """Send a reply with a reason."""
    await reply(send, status, _detail(reason), headers)


async def reply(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a reply, as JSON unless the headers say otherwise."""
    await send({"type": "http.response.start", "status": status, "headers": encoded_headers(len(body), headers)})
    await send({"type": "http.response.body", "body": body})


def encoded_headers(size: int, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply, with the size of its body."""
    complete = {"content-type": "application/json", "content-length": str(size), **headers}
    return [(name.lower().encode(), value.encode()) for name, value in complete.items()]


def _detail(reason: str) -> bytes:
    return json.dumps({"detail": reason}).encode()
