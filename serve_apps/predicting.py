"""The route of predictions, in front of all others, because FastAPI would take several times as long."""

from __future__ import annotations

import logging
import time

from fastapi import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from driftlab.errors import DriftlabError
from driftlab.serve_apps.access import read_body, session_in
from driftlab.serve_apps.batching import ImageBatches, Prediction, checked_pixels, raw_images
from driftlab.serve_apps.guard import HUB
from driftlab.serve_apps.images import prediction_document
from driftlab.serve_apps.replies import BINARY, PIXELS, refusal_of, refuse, reply
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
        self._app, self._batches = app, batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        name = session_of(path) if path.endswith(SUFFIX) and scope.get("method") == "POST" else None
        if name is None or path != PATH.format(name=name):
            await self._app(scope, receive, send)
            return
        try:
            body, headers = await self._predict(scope, name, receive)
        except (DriftlabError, HTTPException) as error:
            await reply(send, *refusal_of(error))
        except ClientDisconnect:  # before the end of its body, so a reply has no receiver
            raise
        except Exception:  # of the network: the reply must have the usual form
            log.exception("a prediction has failed")
            await refuse(send, 500, "the prediction has failed", {})
        else:
            await reply(send, 200, body, headers)

    async def _predict(self, scope: Scope, name: str, receive: Receive) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the reply."""
        hub, session, asked = scope[HUB], await session_in(scope, name), dict(scope["headers"])
        body = await read_body(receive, hub.limits.image_bytes)
        is_raw = asked.get(b"content-type") == PIXELS.encode()
        content = raw_images(body, session.app.size) if is_raw else body
        hub.quotas.check_processor(name)
        hub.quotas.decode(name, len(body) if is_raw else 3 * checked_pixels(body))
        began_s = time.perf_counter()
        found = await self._batches.predict(session, content)
        hub.meters.prediction_s.observe(time.perf_counter() - began_s)
        if asked.get(b"accept") == BINARY.encode():
            return _binary(found)
        documents = [prediction_document(found.version, found.task, one) for one in found.predictions]
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
