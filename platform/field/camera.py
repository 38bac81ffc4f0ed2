"""A live camera: one thread stores its newest images, and streams of several sizes read them."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.catalogue import CAMERA
from driftlab.datasets.frames import Frames, Stream, Times
from driftlab.datasets.remote import RemoteStream
from driftlab.errors import DataError, RequestError, first_line
from driftlab.platform.sim.nodes.camera import CameraNode
from driftlab.platform.sim.setting import StreamSpec

log = logging.getLogger(__name__)
Pixels = npt.NDArray[np.uint8]
FIRST_TIMEOUT_S, READ_TIMEOUT_S = 20.0, 10.0  # for the first image, and for each later one
REOPEN_INTERVAL_S = 1.0  # between attempts to open a disconnected camera
MAX_BYTES = 256 * 2**20  # of stored images
FORMATS = ("lavfi", "v4l2", "avfoundation", "dshow", "x11grab")  # device types of PyAV, written before a colon


def is_camera(workload: str) -> bool:
    """Return whether a workload is a camera of this computer."""
    return workload.startswith(f"{CAMERA}:")


class LiveCamera:
    """Store, for every frame of the stream, the newest image that the camera had delivered by then."""

    def __init__(self, source: str, size: tuple[int, int], fps: float) -> None:
        if Path(source).is_file():
            raise RequestError(f"'{source}' is a file, not a camera. Use --workload video:{source}.")
        self.source, self.size, self.fps = source, size, fps
        self.zero_s = 0.0  # monotonic clock at the start of the stream
        self.fault = ""
        self._stored: deque[tuple[float, Pixels]] = deque()
        self._changed, self._stop = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._stored, FIRST_TIMEOUT_S):
                self._stop.set()
                reason = self.fault or "no image"
                raise DataError(f"Camera '{source}' delivered no image within {FIRST_TIMEOUT_S:g} s: {reason}.")

    def close(self) -> None:
        self._stop.set()
        self._thread.join(READ_TIMEOUT_S)

    def at(self, time_s: float) -> Pixels:
        """Return the newest image at a time of the stream; before the first image, return the first."""
        with self._changed:
            stamps = [stamp for stamp, _ in self._stored]
            return self._stored[max(0, bisect_right(stamps, self.zero_s + time_s) - 1)][1]

    def _run(self) -> None:
        """Read images until `close`; if the camera ends or fails, open it again after a pause."""
        while not self._stop.is_set():
            try:
                for image in _read_images(self.source, self.size):
                    self._store(image)
                    if self._stop.is_set():
                        return
                self.fault = "it ended"
            except Exception as error:  # of the camera's driver: the device continues with the last image
                self.fault = first_line(error)
                log.warning("camera '%s': %s", self.source, self.fault)
            self._stop.wait(REOPEN_INTERVAL_S)

    def _store(self, image: Pixels) -> None:
        """Store an image; it replaces one that no frame of the stream has used."""
        stamp = time.monotonic()
        with self._changed:
            stored = self._stored
            if stored and self._frame(stored[-1][0]) == self._frame(stamp) and len(stored) > 1:
                stored.pop()
            stored.append((stamp, image))
            while len(stored) > 2 and len(stored) * image.nbytes > MAX_BYTES:
                stored.popleft()
            self._changed.notify_all()

    def _frame(self, stamp: float) -> int:
        """Return the number of the first frame that uses an image of this time."""
        return int(np.ceil((stamp - self.zero_s) * self.fps))


def _read_images(source: str, size: tuple[int, int]) -> Iterator[Pixels]:
    """Yield RGB images of a size at the rate of the camera."""
    return _opencv(source, size) if source.isdecimal() or source.startswith("/dev/") else _pyav(source, size)


def _opencv(source: str, size: tuple[int, int]) -> Iterator[Pixels]:
    import cv2

    capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
    try:
        while (read := capture.read())[0]:
            yield np.asarray(cv2.resize(read[1], size[::-1], interpolation=cv2.INTER_AREA)[..., ::-1], np.uint8)
    finally:
        capture.release()


def _pyav(source: str, size: tuple[int, int]) -> Iterator[Pixels]:
    import av

    kind, _, rest = source.partition(":")
    options: dict[str, Any] = {"format": kind} if kind in FORMATS else {}
    address = rest if options else source
    with av.open(address, timeout=(FIRST_TIMEOUT_S, READ_TIMEOUT_S), **options) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            image = frame.to_ndarray(format="rgb24", width=size[1], height=size[0], interpolation="AREA")
            yield np.asarray(image, np.uint8)


@dataclass(frozen=True)
class CameraStream(RemoteStream):
    """The images of a camera at one size."""

    camera: LiveCamera

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return the images that the camera delivered by these times."""
        times = np.asarray(times_s, np.float64)
        images = np.empty((len(times), *self.size, 3), np.uint8)
        for row, time_s in enumerate(times):
            images[row] = _resize(self.camera.at(float(time_s)), self.size)
        return Frames(times, images, np.zeros(len(times), np.int32))


def _resize(image: Pixels, size: tuple[int, int]) -> Pixels:
    import cv2

    if image.shape[:2] == size:
        return image
    return np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)


class CameraDevice(CameraNode):
    """The simulator's device with a live camera as its workload."""

    def __init__(self, spec: StreamSpec, camera: LiveCamera) -> None:
        super().__init__(spec)
        self._camera = camera

    def _open(self, scale: int) -> Stream:
        spec = self._spec
        size = (spec.height * scale, spec.width * scale)
        return CameraStream(spec.workload, size, spec.fps, spec.duration_s, self._camera)


def open_camera(spec: StreamSpec, scale: int) -> LiveCamera:
    """Open the camera of a stream at the largest image size that is uploaded."""
    size = (spec.height * scale, spec.width * scale)
    return LiveCamera(spec.workload.partition(":")[2], size, spec.fps)
