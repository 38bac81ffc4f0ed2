"""Decode images and uploads of devices in a child process with limits on memory and time.

The sizes in a header are checked before any pixel is decoded. If the decoder crashes or exceeds a limit, only the
request that it was decoding is refused; the next one starts a new process. The child is this module as a program, which
reads requests from an inherited socket.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driftlab.datasets.frames import Frames
from driftlab.errors import DriftlabError, RequestError, WireError, first_line
from driftlab.platform.core.records import Received, Reply
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import UNKNOWN_SCENE, Images, dimensions_of, receive

MAX_PIXELS = 16 * 2**20  # of an image in a request
MEMORY_BYTES = 2**30  # of address space, in addition to that of an idle child
CPU_S = 20  # of one request; a signal then ends the child
WALL_S = 120.0  # of one request, on a busy computer
MAX_FILES = 64  # open in a child
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG")  # not the server's token
HEAD = struct.Struct("<I")  # bytes of the JSON document that begins a message


class DecoderCrashed(WireError):
    """The decoder crashed, or exceeded a limit."""


class MediaDecoder:
    """A child process that decodes one request at a time; the first request starts it, with its priority."""

    def __init__(self) -> None:
        self.cpu_s = 0.0  # of all requests
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def receive(self, payload: bytes, sampling: Sampling, size: tuple[int, int]) -> Reply:
        """Decode the payload of an upload; the reply has the reason if it cannot be decoded."""
        times_s = np.asarray(sampling.times_s, dtype=np.float64)
        request = {"times_s": sampling.times_s, "codec": sampling.codec, "scale": sampling.scale, "size": size}
        try:
            (fault,), images = self._decode(request, [payload], len(times_s))
        except DecoderCrashed as error:
            return Reply(Received(0, str(error)))
        if fault:
            return Reply(Received(0, fault))
        scenes = np.full(len(times_s), UNKNOWN_SCENE, dtype=np.int32)
        return Reply(Received(len(times_s)), payload=Frames(times_s, images, scenes))

    def images(self, bodies: Sequence[bytes], size: tuple[int, int]) -> list[Images | RequestError]:
        """Return PNG or JPEG images at the size of the network's input, or the error of an image."""
        try:
            faults, images = self._decode({"size": size}, bodies, 1)
        except DecoderCrashed as error:
            if len(bodies) == 1:
                return [RequestError(str(error))]
            return [image for body in bodies for image in self.images([body], size)]  # one of them is at fault
        rest = iter(images)
        return [RequestError(fault) if fault else next(rest) for fault in faults]

    def warm_up(self) -> None:
        """Start the process and wait until it can decode."""
        self.images([b""], (1, 1))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _decode(self, request: dict[str, Any], bodies: Sequence[bytes], frames: int) -> tuple[list[str], Images]:
        """Return the fault of each body, empty for one that is so many frames, and all decoded frames.

        Raise DecoderCrashed if the child ends or takes too long.
        """
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            self._socket.settimeout(WALL_S)
            head = json.dumps({**request, "bytes": [len(body) for body in bodies]}).encode()
            try:
                self._socket.sendall(b"".join([HEAD.pack(len(head)), head, *bodies]))
                reply = json.loads(_read(self._socket, HEAD.unpack(_read(self._socket, HEAD.size))[0]))
                faults = [str(fault) for fault in reply["faults"]]
                shape = (frames * faults.count(""), *request["size"], 3)
                images = np.frombuffer(_read(self._socket, math.prod(shape)), dtype=np.uint8).reshape(shape)
                self.cpu_s += float(reply["cpu_s"])
            except (OSError, EOFError, ValueError) as error:
                self._end()
                raise DecoderCrashed(
                    f"decoding these {sum(map(len, bodies))} bytes needed more than {CPU_S} s or "
                    f"{MEMORY_BYTES >> 20} MiB, or crashed the decoder"
                ) from error
            return faults, images

    def _start(self) -> socket.socket:
        """Start the child and return the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, (theirs.fileno(), MEMORY_BYTES))],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
            )
        return ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


def child_environment() -> dict[str, str]:
    """Return the variables of a child that imports the modules of this process, and uses one thread."""
    paths = [str(Path(path).absolute()) for path in sys.path if path]
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return environment | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def decode_image(body: bytes, size: tuple[int, int]) -> Images:
    """Return a PNG or JPEG image at a size; refuse large images before decoding."""
    import cv2

    height, width = dimensions_of(body)
    try:
        decodes = 0 < height * width <= MAX_PIXELS
        image = cv2.imdecode(np.frombuffer(body, dtype=np.uint8), cv2.IMREAD_COLOR) if decodes else None
    except cv2.error:
        image = None
    if image is None:
        raise RequestError(f"{len(body)} bytes are not a PNG or JPEG image of at most {MAX_PIXELS} pixels")
    if image.shape[:2] != size:
        image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(image[..., ::-1]).astype(np.uint8)


# The child ------------------------------------------------------------------------------------------------------------


def _read(source: socket.socket, size: int) -> bytearray:
    """Read exactly so many bytes; raise EOFError at an end before."""
    data, filled = bytearray(size), 0
    while filled < size:
        count = source.recv_into(memoryview(data)[filled:])
        if not count:
            raise EOFError
        filled += count
    return data


def _limit_memory(memory_bytes: int) -> None:
    """Limit memory and files; a child writes no files."""
    idle_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, limit in (
        (resource.RLIMIT_AS, idle_bytes + memory_bytes),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))


def _decoded(request: dict[str, Any], body: bytes) -> tuple[str, bytes]:
    """Return the fault, or an empty text and the decoded frames."""
    size = tuple(request["size"])
    try:
        if "times_s" not in request:
            return "", decode_image(body, size).tobytes()
        sampling = Sampling(tuple(request["times_s"]), 0.0, codec=request["codec"], scale=request["scale"])
        reply = receive(body, sampling, size)
        return reply.facts.refused, b"" if reply.facts.refused else reply.payload.images.tobytes()
    except DriftlabError as error:
        return str(error), b""
    except Exception as error:  # such as MemoryError: the request is refused, the child can continue
        return f"cannot be decoded: {type(error).__name__}: {first_line(error)}", b""


def _serve(source: socket.socket) -> None:
    """Decode requests until the parent closes the socket."""
    while True:
        request = json.loads(_read(source, HEAD.unpack(_read(source, HEAD.size))[0]))
        bodies = [bytes(_read(source, size)) for size in request["bytes"]]
        before_s = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(before_s) + 1 + CPU_S, resource.RLIM_INFINITY))
        faults, frames = zip(*[_decoded(request, body) for body in bodies], strict=True)
        head = json.dumps({"faults": faults, "cpu_s": time.process_time() - before_s}).encode()
        source.sendall(b"".join([HEAD.pack(len(head)), head, *frames]))


def main(number: int, memory_bytes: int) -> None:
    """Serve the requests of a parent on an inherited socket."""
    import cv2

    cv2.setNumThreads(1)
    _limit_memory(memory_bytes)
    with contextlib.suppress(EOFError, ConnectionError), socket.socket(fileno=number) as source:
        _serve(source)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
