"""A child process that predicts images, while the event loop reads requests and sends replies.

The event loop of a busy server would do both in turn, on one core. It writes the pixels of a batch into memory that it
shares with the child, and sends a message with their place there; the child replaces them by the predictions. The child
has a copy of each session's network, which is sent again after a change. The child is this module as a program, which
reads from an inherited socket.

If the child ends, or needs too long for a batch, its batches are given back and predicted in the server's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from driftlab.errors import first_line
from driftlab.platform.field.media import child_environment
from driftlab.platform.sim import host, portable
from driftlab.platform.streaming.wire.samples import Images
from driftlab.serve_apps.hosting import MAX_BATCH, HostedSession, in_passes

log = logging.getLogger(__name__)
IS_SUPPORTED = hasattr(os, "memfd_create")  # so on Linux, whose sockets keep messages apart
PLACES = 2  # batches at the same time: one is predicted, and one waits
SMALL_PIXELS = 2**16  # of an image, at most
PLACE_BYTES = MAX_BATCH * SMALL_PIXELS * 3
MESSAGE_BYTES, FAULT_BYTES = 2**12, 200
REUSE_S = 10.0  # since its last batch, in which a network is not dropped for another one
START_S, BATCH_S = 60.0, 5.0  # for the child to start, and for a batch that takes a second on a quiet computer
READY = b"ready"
BATCH = struct.Struct("<IQI4I")  # place, generation of the network, images of a forward pass, shape
REPLY = struct.Struct("<I?qd")  # place, whether there are predictions, version, processor seconds; description or fault


@dataclass(frozen=True, eq=False)
class PredictedBatch:
    """The predictions of a batch, by one version of the network."""

    version: int
    predictions: npt.NDArray[Any]
    cpu_s: float


Settle = Callable[[PredictedBatch | None], None]  # takes the predictions of a batch; None: predict it elsewhere


class PredictingProcess:
    """The child of an event loop; it takes batches once `is_ready`, until `has_ended`."""

    def __init__(self, networks: int) -> None:
        """Start the child, which keeps so many networks; call this, and all else, on the event loop."""
        import torch

        self.is_ready = self.has_ended = False
        self._loop, self._networks = asyncio.get_running_loop(), networks
        self._batches: OrderedDict[int, tuple[HostedSession, Settle]] = OrderedDict()  # by their places, oldest first
        self._free = asyncio.Event()  # set while a place is free
        self._free.set()
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # generation and last use, by session
        self._unfit: WeakSet[HostedSession] = WeakSet()  # whose networks cannot be sent, or whose predictions failed
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        memory = os.memfd_create("driftlab-images")
        arguments = (theirs.fileno(), memory, torch.get_num_threads())
        try:
            os.truncate(memory, PLACES * PLACE_BYTES)
            self._memory = mmap.mmap(memory, PLACES * PLACE_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, arguments)],
                pass_fds=arguments[:2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
            )
        finally:
            os.close(memory)
            theirs.close()
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._timer = self._loop.call_later(START_S, self._end, "does not start")

    @property
    def is_full(self) -> bool:
        """Return whether the next batch has to wait."""
        return not self._free.is_set()

    def fits(self, session: HostedSession) -> bool:
        """Return whether the child can predict for a session, as far as is known."""
        return session not in self._unfit and session.app.networks.task.blank(0, 1, 1).dtype != object

    async def free(self) -> None:
        """Wait until another batch can begin, or the child has ended."""
        await self._free.wait()

    async def begin(self, session: HostedSession, contents: Sequence[Images], settle: Settle) -> bool:
        """Begin to predict a batch, whose images have the network's size; return whether it does.

        There must be a free place, and no second call meanwhile.
        """
        name = session.folder.name
        if self._known.get(name, (0,))[0] != session.generation and not await self._introduce(session):
            return False
        if self.has_ended:
            return False
        session.on_use()
        generation = self._known[name][0]
        self._known[name] = generation, time.monotonic()
        self._known.move_to_end(name)
        place = min(set(range(PLACES)) - set(self._batches))
        shape = (sum(map(len, contents)), *contents[0].shape[1:])
        np.concatenate(contents, out=_images_in(self._memory, place, shape))
        self._batches[place] = session, settle
        if len(self._batches) == 1:
            self._await_reply()
        if len(self._batches) == PLACES:
            self._free.clear()
        self._send(BATCH.pack(place, generation, session.batch_images, *shape))
        return True

    def close(self) -> None:
        """End the child, without its batches."""
        if self.has_ended:
            return
        self.is_ready, self.has_ended = False, True
        self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._free.set()

    async def _introduce(self, session: HostedSession) -> bool:
        """Send a network to the child, which drops the one that was not used for the longest time.

        Return whether the child has it. Others may need theirs soon; some cannot be sent, such as members from users'
        files.
        """
        name = session.folder.name
        used_s = next(iter(self._known.values()), (0, 0.0))[1]
        if name not in self._known and len(self._known) >= self._networks and time.monotonic() < used_s + REUSE_S:
            return False
        try:
            generation, given = await self._loop.run_in_executor(None, _dump_network, session)
        except Exception as error:  # of any kind: this session is predicted without the child
            log.warning("predictions of %s stay in this process: %s", name, first_line(error))
            self._unfit.add(session)
            return False
        try:
            dropped = [self._known.pop(name)[0]] if name in self._known else []
            self._known[name] = generation, time.monotonic()
            dropped += [self._known.popitem(last=False)[1][0] for _ in range(len(self._known) - self._networks)]
            self._send(json.dumps({"generation": generation, "dropped": dropped}).encode(), given)
        finally:
            os.close(given)
        return True

    def _await_reply(self) -> None:
        """End the child if it does not reply to its oldest batch."""
        self._timer.cancel()
        if self._batches:
            self._timer = self._loop.call_later(BATCH_S, self._end, "needs too long")

    def _send(self, message: bytes, *descriptors: int) -> None:
        try:
            socket.send_fds(self._socket, [message], descriptors)
        except OSError as error:
            self._end(first_line(error))

    def _read(self) -> None:
        """Take a message of the child."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end("ended")
            return
        if data == READY:
            self.is_ready = True
            self._timer.cancel()
            return
        place, is_predicted, version, cpu_s = REPLY.unpack_from(data)
        found = self._predicted(place, data[REPLY.size :]) if is_predicted else None
        session, settle = self._batches.pop(place)
        self._await_reply()
        self._free.set()
        if found is None:  # if the network raises an error, this process meets it again and replies
            fault = data[REPLY.size :].decode(errors="replace")
            log.warning("predictions of %s stay in this process: %s", session.folder.name, fault)
            self._unfit.add(session)
            self._known.pop(session.folder.name, None)
        settle(None if found is None else PredictedBatch(version, found, cpu_s))

    def _predicted(self, place: int, description: bytes) -> npt.NDArray[Any]:
        dtype, shape = _described(description)
        found = np.frombuffer(self._memory, dtype, math.prod(shape), place * PLACE_BYTES)
        return np.array(found.reshape(shape))

    def _end(self, reason: str) -> None:
        """End the child, and give its batches back."""
        if self.has_ended:
            return
        self.close()
        log.warning("the process that predicts %s; another one starts under further load", reason)
        batches, self._batches = self._batches, OrderedDict()
        for _, settle in batches.values():
            settle(None)


def _environment() -> dict[str, str]:
    """Return the variables of the child, among them those that change arithmetic."""
    return {**child_environment(), **{name: os.environ[name] for name in portable.SETTINGS if name in os.environ}}


def _dump_network(session: HostedSession) -> tuple[int, int]:
    """Return the generation of a session's network, and a descriptor of its file in memory."""
    generation, network = session.dump_network()
    descriptor = os.memfd_create("driftlab-network")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(network)
    except BaseException:
        os.close(descriptor)
        raise
    return generation, descriptor


def _images_in(memory: mmap.mmap, place: int, shape: Sequence[int]) -> Images:
    """Return the images at a place of the shared memory; they are not copied."""
    return np.frombuffer(memory, np.uint8, math.prod(shape), place * PLACE_BYTES).reshape(shape)


# The child ------------------------------------------------------------------------------------------------------------


def _serve(source: socket.socket, memory: mmap.mmap) -> None:
    """Predict until the parent closes the socket."""
    from driftlab.platform.field.state_file import load_objects

    networks: dict[int, bytes] = {}  # by generation
    nodes: dict[int, Any] = {}
    source.send(READY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(source, MESSAGE_BYTES, 1)
        if not data:
            return
        if descriptors:
            message = json.loads(data)
            for generation in message["dropped"]:
                networks.pop(generation, None)
                nodes.pop(generation, None)
            with open(descriptors[0], "rb") as file:
                file.seek(0)
                networks[message["generation"]] = file.read()
            continue
        place, generation, each, *shape = BATCH.unpack(data)
        try:
            if generation not in nodes:
                nodes[generation] = load_objects(networks.pop(generation))
            began_s = time.process_time()
            version, description = _predict(nodes[generation], memory, place, shape, each)
        except Exception as error:
            nodes.pop(generation, None)
            fault = f"{type(error).__name__}: {first_line(error)}".encode()[:FAULT_BYTES]
            source.send(REPLY.pack(place, False, 0, 0.0) + fault)
        else:
            source.send(REPLY.pack(place, True, version, time.process_time() - began_s) + description)


def _predict(node: Any, memory: mmap.mmap, place: int, shape: Sequence[int], each: int) -> tuple[int, bytes]:
    """Replace the images at a place by their predictions; return the version and a description of these."""
    version, found = in_passes(node.predict_images, _images_in(memory, place, shape), each)
    if found.dtype == object or found.nbytes > PLACE_BYTES:
        raise ValueError(f"predictions of {found.nbytes} bytes of the type {found.dtype} cannot be sent")
    np.frombuffer(memory, found.dtype, found.size, place * PLACE_BYTES).reshape(found.shape)[...] = found
    return version, _description(found.dtype, found.shape)


@lru_cache(64)
def _description(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return json.dumps([dtype.str, shape]).encode()


@lru_cache(64)
def _described(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, shape = json.loads(data)
    return np.dtype(dtype), tuple(shape)


def main(number: int, memory: int, threads: int) -> None:
    """Serve the batches of a parent on an inherited socket and memory."""
    import torch

    torch.set_num_threads(threads)  # each number of threads adds in another order
    host.keep_freed_memory()
    host.search_garbage_rarely()
    shared = mmap.mmap(memory, PLACES * PLACE_BYTES)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=number) as source:
        _serve(source, shared)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
