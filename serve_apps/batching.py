"""Predict images in batches: images of a session that wait at the same time share a forward pass.

An image never waits for a batch to fill; the images that arrive during one batch form the next. Images are decoded in
a child process with limits. Large images have a thread and a process of lower priority, so that small ones do not wait
for them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from math import prod

import numpy as np

from driftlab.errors import RequestError
from driftlab.platform.field.media import MAX_PIXELS, MediaDecoder
from driftlab.platform.streaming.wire.samples import dimensions_of
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.images import prediction_document

MAX_BATCH = 32  # images
MAX_BATCH_PIXELS = 2**20  # of the images of a batch; a larger image is predicted alone
LARGE_PIXELS = 2**16  # of an image or of the network's input; larger ones are predicted at lower priority
NICE = 10  # of that priority
_QueuedImage = tuple[bytes, int, "asyncio.Future[bytes]"]  # with its pixels


class ImageBatches:
    """The image queues of one event loop; `charge` receives the processor seconds of a session."""

    def __init__(self, charge: Callable[[HostedSession, float], None] = lambda session, cpu_s: None) -> None:
        self._lanes = (_Lane(charge, 0), _Lane(charge, NICE))

    async def predict(self, session: HostedSession, body: bytes) -> bytes:
        """Return the prediction of an image as a JSON document; refuse an image of unknown or excessive size."""
        pixels = checked_pixels(body)
        return await self._lanes[max(pixels, prod(session.app.size)) > LARGE_PIXELS].predict(session, body, pixels)

    def warm_up(self) -> None:
        """Start the decoder, so that the first image does not wait for it."""
        self._lanes[0].decoder.warm_up()

    def close(self) -> None:
        """End the decoders."""
        for lane in self._lanes:
            lane.decoder.close()


def checked_pixels(body: bytes) -> int:
    """Return the number of pixels in an image's header; refuse other bytes and large images."""
    pixels = prod(dimensions_of(body))
    if not 0 < pixels <= MAX_PIXELS:
        raise RequestError(f"{len(body)} bytes are not a PNG or JPEG image of at most {MAX_PIXELS} pixels")
    return pixels


class _Lane:
    """A queue with a thread and a decoder."""

    def __init__(self, charge: Callable[[HostedSession, float], None], nice: int) -> None:
        self.decoder, self._charge = MediaDecoder(nice), charge
        self._waiting: OrderedDict[HostedSession, list[_QueuedImage]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference", initializer=os.nice, initargs=(nice,))
        self._pump: asyncio.Task[None] | None = None

    async def predict(self, session: HostedSession, body: bytes, pixels: int) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append((body, pixels, future))
        if self._pump is None:
            self._pump = asyncio.create_task(self._predict_all())
        return await future

    async def _predict_all(self) -> None:
        """Predict batches, taking one from each session in turn, until none waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                session, images = self._waiting.popitem(last=False)
                count = _batch_size([pixels for _, pixels, _ in images])
                if images[count:]:
                    self._waiting[session] = images[count:]
                bodies = [body for body, _, _ in images[:count]]
                replies = await loop.run_in_executor(self._thread, self._predict_batch, session, bodies)
                for (_, _, future), reply in zip(images[:count], replies, strict=True):
                    _settle(future, reply)
        finally:
            self._pump = None

    def _predict_batch(self, session: HostedSession, bodies: list[bytes]) -> list[bytes | Exception]:
        began_s = time.thread_time() + self.decoder.cpu_s
        try:
            return predict_bodies(session, bodies, self.decoder)
        finally:
            self._charge(session, time.thread_time() + self.decoder.cpu_s - began_s)


def _batch_size(pixels: list[int]) -> int:
    """Return how many of the images form the next batch."""
    sums = accumulate(pixels[:MAX_BATCH])
    return max(1, sum(size <= MAX_BATCH_PIXELS for size in sums))


def predict_bodies(session: HostedSession, bodies: list[bytes], decoder: MediaDecoder) -> list[bytes | Exception]:
    """Return a document for each image, or the error of an image that cannot be decoded."""
    images = decoder.images(bodies, session.app.size)
    good = [image for image in images if not isinstance(image, Exception)]
    try:
        version, predictions = session.predict(np.stack(good)) if good else (0, ())
    except Exception as error:
        return [error] * len(bodies)
    task = session.app.networks.task.name
    rest = iter(predictions)
    return [
        image if isinstance(image, Exception) else prediction_document(version, task, next(rest)) for image in images
    ]


def _settle(future: asyncio.Future[bytes], reply: bytes | Exception) -> None:
    if future.done():  # the client has disconnected
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
