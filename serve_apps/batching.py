"""Predict images in batches: images of a session that wait at the same time share a forward pass.

A request holds an encoded image, or the pixels of several.

An image never waits for a batch to fill; the images that arrive during one batch form the next. Images are decoded in
a child process with limits. Large images have a thread and a process of lower priority, so that small ones do not wait
for them. A batch of pixels that takes a few milliseconds is predicted on the event loop, because to pass it to a thread
would take as long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError
from driftlab.platform.field.media import MAX_PIXELS, MediaDecoder
from driftlab.platform.streaming.wire.samples import dimensions_of
from driftlab.serve_apps.hosting import MAX_BATCH, HostedSession

log = logging.getLogger(__name__)
MAX_BATCH_PIXELS = 2**20  # of the encoded images of a batch; a larger image is decoded alone
LARGE_PIXELS = 2**16  # of an image or of the network's input; larger ones are predicted at lower priority
NICE = 10  # of that priority
AT_ONCE_S = 0.005  # of a batch that the event loop predicts itself
Images = npt.NDArray[np.uint8]  # [n, height, width, 3], RGB


@dataclass(slots=True, eq=False)
class Prediction:
    """The predictions of a request's images, by one version of the network."""

    version: int
    task: str
    predictions: npt.NDArray[Any]


Settle = Callable[[Prediction | Exception], None]  # takes the predictions of a request, or why there are none


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in a queue."""

    content: bytes | Images  # an encoded image, or the pixels of several
    pixels: int
    settle: Settle

    @property
    def is_raw(self) -> bool:
        return not isinstance(self.content, bytes)

    @property
    def count(self) -> int:
        return 1 if isinstance(self.content, bytes) else len(self.content)


class ImageBatches:
    """The image queues of one event loop; `charge` receives the processor seconds of a session."""

    def __init__(self, charge: Callable[[HostedSession, float], None] = lambda session, cpu_s: None) -> None:
        self._lanes = (_Lane(charge, 0), _Lane(charge, NICE))

    async def predict(self, session: HostedSession, content: bytes | Images) -> Prediction:
        """Predict an encoded image, or the pixels of several; refuse an image of unknown or excessive size."""
        future: asyncio.Future[Prediction] = asyncio.get_running_loop().create_future()
        self.begin(session, content, partial(_set_result, future))
        return await future

    def begin(self, session: HostedSession, content: bytes | Images, settle: Settle) -> None:
        """Begin to predict; the event loop calls `settle` with the predictions."""
        pixels = checked_pixels(content) if isinstance(content, bytes) else content.size // 3
        one = pixels if isinstance(content, bytes) else prod(session.app.size)
        lane = self._lanes[max(one, prod(session.app.size)) > LARGE_PIXELS]
        lane.add(session, _Waiting(content, pixels, settle))

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


def raw_images(body: bytes | memoryview, size: tuple[int, int]) -> Images:
    """Return the pixels of a body as images of the network's size; they are not copied."""
    each = 3 * prod(size)
    if not body or len(body) % each or len(body) > MAX_BATCH * each:
        raise RequestError(
            f"{len(body)} bytes are not 1 to {MAX_BATCH} images of {size[0]} x {size[1]} RGB pixels, {each} bytes each"
        )
    return np.frombuffer(body, np.uint8).reshape(-1, *size, 3)


class _Lane:
    """A queue with a thread and a decoder."""

    def __init__(self, charge: Callable[[HostedSession, float], None], nice: int) -> None:
        self.decoder, self._charge = MediaDecoder(), charge
        self._waiting: OrderedDict[HostedSession, list[_Waiting]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference", initializer=os.nice, initargs=(nice,))
        self._pump: asyncio.Task[None] | None = None
        self._image_s: WeakKeyDictionary[HostedSession, float] = WeakKeyDictionary()  # in the newest batch

    def add(self, session: HostedSession, request: _Waiting) -> None:
        self._waiting.setdefault(session, []).append(request)
        if self._pump is None:
            self._pump = asyncio.create_task(self._predict_all())

    async def _predict_all(self) -> None:
        """Predict batches, taking one from each session in turn, until none waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await asyncio.sleep(0)  # requests that have arrived already join the batch
                session, waiting = self._waiting.popitem(last=False)
                count = _batch_size(waiting, session.batch_images)
                if waiting[count:]:
                    self._waiting[session] = waiting[count:]
                contents = [one.content for one in waiting[:count]]
                try:
                    if self._is_short(session, waiting[:count]):
                        replies = self._predict_batch(session, contents)
                    else:
                        replies = await loop.run_in_executor(self._thread, self._predict_batch, session, contents)
                except Exception as error:  # of the decoder's process
                    replies = [error] * count
                for one, reply in zip(waiting[:count], replies, strict=True):
                    _settle(one, reply)
        finally:
            self._pump = None

    def _predict_batch(
        self, session: HostedSession, contents: Sequence[bytes | Images]
    ) -> list[Prediction | Exception]:
        began_s, clock_s = time.thread_time() + self.decoder.cpu_s, time.monotonic()
        try:
            replies = predict_contents(session, contents, self.decoder)
        finally:
            self._charge(session, time.thread_time() + self.decoder.cpu_s - began_s)
        images = sum(len(one.predictions) for one in replies if isinstance(one, Prediction))
        self._image_s[session] = (time.monotonic() - clock_s) / max(1, images)
        return replies

    def _is_short(self, session: HostedSession, waiting: Sequence[_Waiting]) -> bool:
        """Return whether to predict a batch takes a few milliseconds at most, and waits for nothing."""
        seconds = self._image_s.get(session, AT_ONCE_S) * sum(one.count for one in waiting)
        return seconds < AT_ONCE_S and not session.is_updating and all(one.is_raw for one in waiting)


def _batch_size(waiting: Sequence[_Waiting], most: int) -> int:
    """Return how many of the requests form the next batch; a larger request is predicted alone."""
    pixels = images = 0
    for place, one in enumerate(waiting):
        pixels, images = pixels + one.pixels, images + one.count
        if place and (pixels > MAX_BATCH_PIXELS or images > most):
            return place
    return len(waiting)


def predict_contents(
    session: HostedSession, contents: Sequence[bytes | Images], decoder: MediaDecoder
) -> list[Prediction | Exception]:
    """Predict the images of all requests at once; the result of one that cannot be decoded is its error."""
    encoded = [one for one in contents if isinstance(one, bytes)]
    decoded = iter(decoder.images(encoded, session.app.size) if encoded else ())
    parts = [next(decoded) if isinstance(one, bytes) else one for one in contents]
    parts = [one[None] if isinstance(one, np.ndarray) and one.ndim == 3 else one for one in parts]
    good = [one for one in parts if not isinstance(one, Exception)]
    try:
        version, found = session.predict(np.concatenate(good)) if good else (0, np.empty(0))
    except Exception as error:
        return [error] * len(contents)
    task, stops = session.app.networks.task.name, accumulate(len(one) for one in good)
    rest = (found[stop - len(one) : stop] for one, stop in zip(good, stops, strict=True))
    return [one if isinstance(one, Exception) else Prediction(version, task, next(rest)) for one in parts]


def _settle(request: _Waiting, reply: Prediction | Exception) -> None:
    try:
        request.settle(reply)
    except Exception:  # the other requests of the batch must have their replies
        log.exception("a prediction could not be passed on")


def _set_result(future: asyncio.Future[Prediction], reply: Prediction | Exception) -> None:
    if future.done():  # the client has disconnected
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
