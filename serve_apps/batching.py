"""Predict images in batches: images of a session that wait at the same time share a forward pass.

A request holds an encoded image, or the pixels of several.

An image never waits for a batch to fill; the images that arrive during one batch form the next. Images are decoded in
a child process with limits. Large images have a thread and a process of lower priority, so that small ones do not wait
for them. A batch of pixels that takes a few milliseconds is predicted on the event loop, because to pass it to a thread
would take as long. A server whose batches wait for each other starts a child process that predicts them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
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
from driftlab.platform.streaming.wire.samples import Images, dimensions_of
from driftlab.serve_apps.hosting import MAX_BATCH, HostedSession
from driftlab.serve_apps.predicting_process import IS_SUPPORTED, SMALL_PIXELS, PredictedBatch, PredictingProcess

log = logging.getLogger(__name__)
MAX_BATCH_PIXELS = 2**20  # of the encoded images of a batch; a larger image is decoded alone
NICE = 10  # priority of images, or network inputs, above `SMALL_PIXELS`
AT_ONCE_S = 0.005  # of a batch that the event loop predicts itself
CROWDED_S = 0.5  # of batches for which others wait, until a child process starts
CALM_S = 1.0  # without such batches, until the event loop predicts again
REQUEST_S = 1e-4  # to read a request and to reply, measured: .04 to .08 ms
CHILD_S, PASSES = 0.005, 4  # of a batch of the child, unless one forward pass takes longer; its messages take .05 ms
LONG_S = 1.0  # of a batch; longer ones are not for the child


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
    def images(self) -> Images:
        assert not isinstance(self.content, bytes), "only requests with pixels are predicted in the child"
        return self.content

    @property
    def count(self) -> int:
        return 1 if isinstance(self.content, bytes) else len(self.content)


class ImageBatches:
    """The image queues of one event loop; `charge` receives the processor seconds of a session."""

    def __init__(
        self, charge: Callable[[HostedSession, float], None] = lambda session, cpu_s: None, child_networks: int = 0
    ) -> None:
        """Keep so many networks in a child process that predicts under load; 0: without a child."""
        self._lanes = (_Lane(charge, 0, child_networks), _Lane(charge, NICE))

    async def predict(self, session: HostedSession, content: bytes | Images) -> Prediction:
        """Predict an encoded image, or the pixels of several; refuse an image of unknown or excessive size."""
        future: asyncio.Future[Prediction] = asyncio.get_running_loop().create_future()
        self.begin(session, content, partial(_set_result, future))
        return await future

    def begin(self, session: HostedSession, content: bytes | Images, settle: Settle) -> None:
        """Begin to predict; the event loop calls `settle` with the predictions."""
        pixels = checked_pixels(content) if isinstance(content, bytes) else content.size // 3
        one = pixels if isinstance(content, bytes) else prod(session.app.size)
        lane = self._lanes[max(one, prod(session.app.size)) > SMALL_PIXELS]
        lane.add(session, _Waiting(content, pixels, settle))

    def warm_up(self) -> None:
        """Start the decoder, so that the first image does not wait for it."""
        self._lanes[0].decoder.warm_up()

    def close(self) -> None:
        """End the child processes."""
        for lane in self._lanes:
            lane.close()


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


class _Child:
    """Decides when a child process predicts: while batches wait for each other."""

    def __init__(self, networks: int) -> None:
        self._networks = networks
        self._process: PredictingProcess | None = None
        self._crowded_s = self._crowded_at_s = 0.0  # without a pause, and the newest time of a crowd
        self._needed_s = CROWDED_S

    def note_crowd(self, seconds: float = 0.0) -> None:
        """Note that batches wait for one that took so long in this process; start the child if that lasts."""
        now_s = time.monotonic()
        self._crowded_s = seconds + (self._crowded_s if now_s < self._crowded_at_s + CALM_S else 0.0)
        self._crowded_at_s = now_s
        if self._crowded_s > self._needed_s and (self._process is None or self._process.has_ended):
            self._crowded_s, self._needed_s = 0.0, 2 * self._needed_s  # one that ends often is started ever less often
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        try:
            self._process = PredictingProcess(self._networks)
        except OSError as error:
            log.warning("no process that predicts can start: %s", error)

    def process(self, session: HostedSession) -> PredictingProcess | None:
        """Return the child if it is to predict for a session."""
        process = self._process
        if process is None or not process.is_ready or time.monotonic() > self._crowded_at_s + CALM_S:
            return None
        return process if process.fits(session) else None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class _Lane:
    """A queue with a thread and a decoder, and a child process for so many networks."""

    def __init__(self, charge: Callable[[HostedSession, float], None], nice: int, child_networks: int = 0) -> None:
        self.decoder, self._charge = MediaDecoder(), charge
        self._waiting: OrderedDict[HostedSession, list[_Waiting]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference", initializer=os.nice, initargs=(nice,))
        self._child = _Child(child_networks) if child_networks and IS_SUPPORTED else None
        self._pump: asyncio.Task[None] | None = None
        self._image_s: WeakKeyDictionary[HostedSession, float] = WeakKeyDictionary()  # in the newest batch

    def add(self, session: HostedSession, request: _Waiting) -> None:
        self._waiting.setdefault(session, []).append(request)
        self._start_pump()

    def close(self) -> None:
        self.decoder.close()
        if self._child is not None:
            self._child.close()

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._predict_all())

    async def _predict_all(self) -> None:
        """Predict batches, taking one from each session in turn, until none waits."""
        try:
            while self._waiting:
                await asyncio.sleep(0)  # requests that have arrived already join the batch
                process = self._process_for(*next(iter(self._waiting.items())))
                if process is not None and process.is_full:
                    await process.free()
                    continue
                session, waiting = self._waiting.popitem(last=False)
                count = _batch_size(waiting, session.batch_images * self._passes(session, process))
                if waiting[count:]:
                    self._waiting[session] = waiting[count:]
                batch = waiting[:count]
                settle = partial(self._end_in_child, session, batch)
                if process is None or not await process.begin(session, [one.images for one in batch], settle):
                    await self._predict_here(session, batch)
        finally:
            self._pump = None

    async def _predict_here(self, session: HostedSession, waiting: Sequence[_Waiting]) -> None:
        """Predict a batch in this process."""
        contents, began_s = [one.content for one in waiting], time.monotonic()
        try:
            if self._is_short(session, waiting):
                replies = self._predict_batch(session, contents)
            else:
                loop = asyncio.get_running_loop()
                replies = await loop.run_in_executor(self._thread, self._predict_batch, session, contents)
        except Exception as error:  # of the decoder's process
            replies = [error] * len(waiting)
        for one, reply in zip(waiting, replies, strict=True):
            _settle(one, reply)
        if self._child is not None and self._waiting and self._is_worth_a_core(session, waiting):
            self._child.note_crowd(time.monotonic() - began_s)

    def _process_for(self, session: HostedSession, waiting: Sequence[_Waiting]) -> PredictingProcess | None:
        """Return the child process if it is to predict the next batch of these requests."""
        if self._child is None or not self._is_worth_a_core(session, waiting):
            return None
        if len(self._waiting) > 1 or len(waiting) > _batch_size(waiting, session.batch_images):
            self._child.note_crowd()
        return self._child.process(session)

    def _passes(self, session: HostedSession, process: PredictingProcess | None) -> int:
        """Return the number of forward passes of a session's next batch: one here, more in the child process."""
        if process is None:
            return 1
        return max(1, min(PASSES, int(CHILD_S / (self._image_s[session] * session.batch_images))))

    def _end_in_child(self, session: HostedSession, waiting: Sequence[_Waiting], found: PredictedBatch | None) -> None:
        """Take the child's predictions; a batch that it gives back waits again, before all others."""
        if found is None:
            self._waiting[session] = [*waiting, *self._waiting.get(session, ())]
            self._waiting.move_to_end(session, last=False)
            self._start_pump()
            return
        self._charge(session, found.cpu_s)
        self._image_s[session] = found.cpu_s / max(1, len(found.predictions))
        replies = _replies(session, found.version, found.predictions, [one.count for one in waiting])
        for one, reply in zip(waiting, replies, strict=True):
            _settle(one, reply)

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

    def _is_worth_a_core(self, session: HostedSession, waiting: Sequence[_Waiting]) -> bool:
        """Return whether to predict requests takes longer than to read them, but not too long."""
        seconds = self._image_s.get(session, 0.0) * sum(one.count for one in waiting)
        is_worth = REQUEST_S * len(waiting) < seconds and self._image_s[session] * MAX_BATCH < LONG_S
        return is_worth and all(one.is_raw for one in waiting)

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
    replies = _replies(session, version, found, [len(one) for one in good])
    return [one if isinstance(one, Exception) else next(replies) for one in parts]


def _replies(session: HostedSession, version: int, found: Any, counts: Sequence[int]) -> Iterator[Prediction]:
    """Divide the predictions of a batch into those of its requests."""
    task, stops = session.app.networks.task.name, accumulate(counts)
    return (Prediction(version, task, found[stop - count : stop]) for count, stop in zip(counts, stops, strict=True))


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
