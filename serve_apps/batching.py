"""Answers of images that come at the same time, in one pass of each session's network.

Nothing waits for company: while a batch is computed, those that come meanwhile gather to the next one. All work on an
image but reading its bytes is done in the thread of the batch, so that a request costs the event loop little.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from driftlab.errors import RequestError
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.pictures import answer_document, decode_image

BATCH = 32  # images
_Asked = tuple[bytes, "asyncio.Future[bytes]"]


class ImageBatches:
    """Batches the images of one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[HostedSession, list[_Asked]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answering")
        self._pump: asyncio.Task[None] | None = None

    async def answer(self, session: HostedSession, body: bytes) -> bytes:
        """Return the JSON document of an image's answer."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append((body, future))
        if self._pump is None:
            self._pump = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        """Answer batch after batch, one session after another."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                session, asked = self._waiting.popitem(last=False)
                batch, rest = asked[:BATCH], asked[BATCH:]
                if rest:
                    self._waiting[session] = rest
                replies = await loop.run_in_executor(self._thread, answer_bodies, session, [body for body, _ in batch])
                for (_, future), reply in zip(batch, replies, strict=True):
                    _settle(future, reply)
        finally:
            self._pump = None


def answer_bodies(session: HostedSession, bodies: list[bytes]) -> list[bytes | Exception]:
    """Decode images, answer them together, and write the documents; an image that is none gets its error."""
    replies: list[Any] = [_decoded(body, session.app.size) for body in bodies]
    places = [place for place, image in enumerate(replies) if not isinstance(image, Exception)]
    try:
        version, answers = session.answer(np.stack([replies[place] for place in places])) if places else (0, ())
    except Exception as error:
        return [error] * len(bodies)
    task = session.app.networks.task.name
    for place, answer in zip(places, answers, strict=True):
        replies[place] = answer_document(version, task, answer)
    return replies


def _decoded(body: bytes, size: tuple[int, int]) -> Any:
    try:
        return decode_image(body, size)
    except RequestError as error:
        return error


def _settle(future: asyncio.Future[bytes], reply: bytes | Exception) -> None:
    if future.done():  # its client has gone
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
