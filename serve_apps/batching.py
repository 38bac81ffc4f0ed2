"""Predict images in batches: images of a session that wait at the same time share a forward pass.

An image never waits for a batch to fill; the images that arrive during one batch form the next. Images are decoded in
the thread of the batch, so a request takes little time of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from driftlab.errors import RequestError
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.images import decode_image, prediction_document

MAX_BATCH = 32  # images
_QueuedImage = tuple[bytes, "asyncio.Future[bytes]"]


class ImageBatches:
    """The image queue of one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[HostedSession, list[_QueuedImage]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._pump: asyncio.Task[None] | None = None

    async def predict(self, session: HostedSession, body: bytes) -> bytes:
        """Return the prediction of an image as a JSON document."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append((body, future))
        if self._pump is None:
            self._pump = asyncio.create_task(self._predict_all())
        return await future

    async def _predict_all(self) -> None:
        """Predict batches, taking one from each session in turn, until none waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                session, images = self._waiting.popitem(last=False)
                batch, rest = images[:MAX_BATCH], images[MAX_BATCH:]
                if rest:
                    self._waiting[session] = rest
                bodies = [body for body, _ in batch]
                replies = await loop.run_in_executor(self._thread, predict_bodies, session, bodies)
                for (_, future), reply in zip(batch, replies, strict=True):
                    _settle(future, reply)
        finally:
            self._pump = None


def predict_bodies(session: HostedSession, bodies: list[bytes]) -> list[bytes | Exception]:
    """Return a document for each image, or the error of an image that cannot be decoded."""
    replies: list[Any] = [_decode(body, session.app.size) for body in bodies]
    places = [place for place, image in enumerate(replies) if not isinstance(image, Exception)]
    try:
        version, predictions = session.predict(np.stack([replies[place] for place in places])) if places else (0, ())
    except Exception as error:
        return [error] * len(bodies)
    task = session.app.networks.task.name
    for place, prediction in zip(places, predictions, strict=True):
        replies[place] = prediction_document(version, task, prediction)
    return replies


def _decode(body: bytes, size: tuple[int, int]) -> Any:
    try:
        return decode_image(body, size)
    except RequestError as error:
        return error


def _settle(future: asyncio.Future[bytes], reply: bytes | Exception) -> None:
    if future.done():  # the client has disconnected
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
