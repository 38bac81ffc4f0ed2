"""A camera in real time: a thread keeps its newest frames, which streams of several sizes read."""

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
FIRST_S, READ_S = 20.0, 10.0  # for the first frame to come, and for any other
AGAIN_S = 1.0  # between two tries to open a camera that went away
MOST_BYTES = 256 * 2**20  # of kept frames
FORMATS = ("lavfi", "v4l2", "avfoundation", "dshow", "x11grab")  # PyAV's names of devices, before a colon


def is_camera(workload: str) -> bool:
    """Tell whether a workload is a camera of this machine."""
    return workload.startswith(f"{CAMERA}:")


class LiveCamera:
    """Keeps, for every frame of the stream, the newest picture that the camera had shown by then."""

    def __init__(self, source: str, size: tuple[int, int], fps: float) -> None:
        if Path(source).is_file():
            raise RequestError(f"'{source}' is a file, which is no camera; give it as --workload video:{source}")
        self.source, self.size, self.fps = source, size, fps
        self.zero_s = 0.0  # of the monotonic clock, at the stream's start
        self.fault = ""
        self._kept: deque[tuple[float, Pixels]] = deque()
        self._changed, self._stop = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._kept, FIRST_S):
                self._stop.set()
                raise DataError(f"Camera '{source}' shows nothing within {FIRST_S:g} s: {self.fault or 'no frame'}.")

    def close(self) -> None:
        self._stop.set()
        self._thread.join(READ_S)

    def at(self, time_s: float) -> Pixels:
        """Return the newest picture at a time of the stream; before the first one that, after the last one that."""
        with self._changed:
            stamps = [stamp for stamp, _ in self._kept]
            return self._kept[max(0, bisect_right(stamps, self.zero_s + time_s) - 1)][1]

    def _run(self) -> None:
        """Read pictures, and open the camera again when it went away."""
        while not self._stop.is_set():
            try:
                for image in _pictures(self.source, self.size):
                    self._keep(image)
                    if self._stop.is_set():
                        return
                self.fault = "it ended"
            except Exception as error:  # of a camera: the device answers on with the last picture
                self.fault = first_line(error)
                log.warning("camera '%s': %s", self.source, self.fault)
            self._stop.wait(AGAIN_S)

    def _keep(self, image: Pixels) -> None:
        """Keep a picture; one that no frame of the stream has shown gives way to it."""
        stamp = time.monotonic()
        with self._changed:
            if self._kept and self._frame(self._kept[-1][0]) == self._frame(stamp) and len(self._kept) > 1:
                self._kept.pop()
            self._kept.append((stamp, image))
            while len(self._kept) > 2 and len(self._kept) * image.nbytes > MOST_BYTES:
                self._kept.popleft()
            self._changed.notify_all()

    def _frame(self, stamp: float) -> int:
        """Return the first frame of the stream that shows a picture of this time."""
        return int(np.ceil((stamp - self.zero_s) * self.fps))


def _pictures(source: str, size: tuple[int, int]) -> Iterator[Pixels]:
    """Read RGB pictures of a size as the camera gives them."""
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
    with av.open(address, timeout=(FIRST_S, READ_S), **options) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            picture = frame.to_ndarray(format="rgb24", width=size[1], height=size[0], interpolation="AREA")
            yield np.asarray(picture, np.uint8)


@dataclass(frozen=True)
class CameraStream(RemoteStream):
    """A camera's pictures at a size."""

    camera: LiveCamera

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Return the pictures that the camera showed at these times."""
        times = np.asarray(times_s, np.float64)
        images = np.empty((len(times), *self.size, 3), np.uint8)
        for row, time_s in enumerate(times):
            images[row] = _sized(self.camera.at(float(time_s)), self.size)
        return Frames(times, images, np.zeros(len(times), np.int32))


def _sized(image: Pixels, size: tuple[int, int]) -> Pixels:
    import cv2

    if image.shape[:2] == size:
        return image
    return np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)


class CameraDevice(CameraNode):
    """The lab's device with a camera instead of a workload."""

    def __init__(self, spec: StreamSpec, camera: LiveCamera) -> None:
        super().__init__(spec)
        self._camera = camera

    def _open(self, scale: int) -> Stream:
        spec = self._spec
        size = (spec.height * scale, spec.width * scale)
        return CameraStream(spec.workload, size, spec.fps, spec.duration_s, self._camera)


def open_camera(spec: StreamSpec, scale: int) -> LiveCamera:
    """Open the camera of a stream, at the largest size that is sent."""
    size = (spec.height * scale, spec.width * scale)
    return LiveCamera(spec.workload.partition(":")[2], size, spec.fps)
