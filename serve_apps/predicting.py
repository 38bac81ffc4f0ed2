"""The route of predictions, in front of all others, because FastAPI would take several times as long."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import lru_cache, partial

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from driftlab.errors import DriftlabError
from driftlab.serve_apps.access import hosted, read_body, session_in
from driftlab.serve_apps.batching import ImageBatches, Prediction, checked_pixels, raw_images
from driftlab.serve_apps.guard import ENCODED_HEADERS, HUB, REFUSED, SESSION
from driftlab.serve_apps.images import prediction_document
from driftlab.serve_apps.quotas import QuotaExceeded, RunningRequest
from driftlab.serve_apps.repeating import Respond, offer_replier
from driftlab.serve_apps.replies import BINARY, PIXELS, encoded_headers, refusal_of, reply
from driftlab.serve_apps.shards import session_of

log = logging.getLogger(__name__)
PATH, SUFFIX = "/sessions/{name}/predict", "/predict"
BYTES = {"schema": {"type": "string", "format": "binary"}}
DESCRIPTION = {  # in the format of OpenAPI
    "summary": "Predict",
    "description": "Predict a PNG or JPEG image, or the pixels of several; the reply has the version of the network.",
    "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
    "requestBody": {"required": True, "content": dict.fromkeys(("image/png", "image/jpeg", PIXELS), BYTES)},
    "responses": {"200": {"description": "Predictions", "content": {"application/json": {}, BINARY: {}}}},
}


class PredictionRoute:
    """Replies to requests for predictions, and passes all others to an application."""

    def __init__(self, app: ASGIApp, batches: ImageBatches) -> None:
        self._app, self.batches = app, batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        name = session_of(path) if path.endswith(SUFFIX) and scope.get("method") == "POST" else None
        if name is None or path != PATH.format(name=name):
            await self._app(scope, receive, send)
            return
        try:
            body, headers = await self._predict(scope, name, receive)
        except ClientDisconnect:  # before the end of its body, so a reply has no receiver
            raise
        except Exception as error:
            await reply(send, *_failure(error))
        else:
            await reply(send, 200, body, headers)

    async def _predict(self, scope: Scope, name: str, receive: Receive) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the reply."""
        session, asked = await session_in(scope, name), dict(scope["headers"])
        body = await read_body(receive, scope[HUB].limits.image_bytes)
        is_raw = asked.get(b"content-type") == PIXELS.encode()
        content = raw_images(body, session.app.size) if is_raw else body
        _check_quotas(scope, name, len(body) if is_raw else 3 * checked_pixels(body))
        began_s = time.perf_counter()
        found = await self.batches.predict(session, content)
        _observe(scope, began_s)
        if is_raw and scope[SESSION] is not None:  # requests of the owner take the usual way
            offer_replier(scope, RepeatedPrediction(self.batches, scope, name))
        return _content(asked, found)


class RepeatedPrediction:
    """Replies to requests with the head of an earlier one; checks again all that may have changed."""

    def __init__(self, batches: ImageBatches, scope: Scope, name: str) -> None:
        self._batches, self._scope, self._name = batches, scope, name
        self._asked = dict(scope["headers"])

    def __call__(self, body: memoryview, respond: Respond) -> bool:
        """Begin to predict; return False for a request to refuse, which the usual way does and charges again."""
        scope = self._scope
        if scope[REFUSED](scope) is not None:
            return False
        request = RunningRequest(scope[HUB].quotas, self._name)
        try:
            request.begin()
        except QuotaExceeded:
            return False
        try:
            request.read(len(body))
            session = hosted(scope, self._name)
            content = raw_images(body, session.app.size)
            _check_quotas(scope, self._name, len(body))
            self._batches.begin(session, content, partial(self._end, request, respond, time.perf_counter()))
        except Exception:  # the usual way meets it again, and replies
            request.end()
            return False
        return True

    def _end(self, request: RunningRequest, respond: Respond, began_s: float, found: Prediction | Exception) -> None:
        request.end()
        status, body, headers = self._reply(found, began_s)
        self._scope[HUB].meters.count_reply(status)
        respond(status, header_lines(len(body), tuple(headers.items())), body)

    def _reply(self, found: Prediction | Exception, began_s: float) -> tuple[int, bytes, Mapping[str, str]]:
        if isinstance(found, Exception):
            return _failure(found)
        _observe(self._scope, began_s)
        try:
            return 200, *_content(self._asked, found)
        except Exception as error:
            return _failure(error)


def _check_quotas(scope: Scope, name: str, size: int) -> None:
    """Count bytes that will be decoded, and refuse a session that uses too much."""
    scope[HUB].quotas.check_processor(name)
    scope[HUB].quotas.decode(name, size)


def _observe(scope: Scope, began_s: float) -> None:
    scope[HUB].meters.prediction_s.observe(time.perf_counter() - began_s)


@lru_cache(256)
def header_lines(size: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the headers of a reply as lines; those of most replies repeat."""
    encoded = (*encoded_headers(size, dict(headers)), *ENCODED_HEADERS)
    return b"".join(b"%s: %s\r\n" % one for one in encoded)


def _failure(error: Exception) -> tuple[int, bytes, Mapping[str, str]]:
    """Return status, body and headers of the reply to a request whose prediction has failed."""
    if isinstance(error, (DriftlabError, HTTPException)):
        return refusal_of(error)
    log.error("a prediction has failed", exc_info=error)  # of the network: the reply must have the usual form
    return refusal_of(HTTPException(500, "the prediction has failed"))


def _content(asked: Mapping[bytes, bytes], found: Prediction) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a reply, in the format that the headers of its request accept."""
    if asked.get(b"accept") == BINARY.encode():
        return _binary(found)
    documents = [prediction_document(found.version, found.task, one) for one in found.predictions]
    is_raw = asked.get(b"content-type") == PIXELS.encode()
    return b"[" + b",".join(documents) + b"]" if is_raw else documents[0], {"content-type": "application/json"}


def _binary(found: Prediction) -> tuple[bytes, dict[str, str]]:
    """Return predictions as the bytes of an array, with its type and shape as headers."""
    if found.predictions.dtype == object:
        raise HTTPException(406, f"predictions in {found.task} differ in size; accept application/json")
    headers = {
        "content-type": BINARY,
        "driftlab-version": str(found.version),
        "driftlab-type": found.predictions.dtype.str,
        "driftlab-shape": ",".join(map(str, found.predictions.shape)),
    }
    return found.predictions.tobytes(), headers
