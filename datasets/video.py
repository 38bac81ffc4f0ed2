"""Video files as streams: random access to frames, and ground truth from label maps next to the file."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import av
import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from driftlab.datasets.boxes import boxes_of
from driftlab.datasets.frames import IGNORE, MAX_PIXEL_CLASSES, Frames, Times, frame_number, frame_times
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

Pixels = npt.NDArray[np.uint8]
_CACHED_FRAMES = 8
MAX_CLASSES_BYTES = 100_000
MAX_VIDEO_BYTES, MAX_FRAME_PX = 2**34, 2**26
MAX_LENGTH_S = 1e7
ROUNDING_S = 1e-6  # rounding error of times as floating-point numbers
UNSTAMPED_CODECS = ("h264", "hevc", "vvc")  # for other codecs FFmpeg derives presentation times from decoding times
UNREADABLE = (av.FFmpegError, ValueError, OverflowError, MemoryError)  # raised by PyAV for damaged files


@dataclass(frozen=True)
class _Index:
    """The frames of a file in presentation order."""

    stamps: tuple[int, ...]  # presentation time in units of the file's time base
    decoded: tuple[int, ...]  # decoding time in these units
    starts_s: tuple[float, ...]  # since the first frame
    keys: tuple[int, ...]  # numbers of the frames at which decoding can begin
    tolerance_s: float  # by which the container's rounding may delay a frame
    length_s: float
    counted: bool  # stamps are decoding times, so frames are counted in the order of the decoder


class VideoStream:
    """A video file that PyAV decodes, at a given size and rate."""

    def __init__(self, path: str, size: tuple[int, int], fps: float, duration_s: float) -> None:
        self._arguments = (path, size, fps, duration_s)
        self._path = Path(path)
        self._decoded: OrderedDict[int, Pixels] = OrderedDict()
        self._frames: Iterator[VideoFrame] | None = None
        self._next = 0  # number of the decoder's next frame
        self._container = self._open()
        self._labels = _find_labels(self._path)
        named = _read_classes(self._path)
        self._boxes = boxes_of(self._path, named)
        self._classes = named or (CLASSES if self._boxes is None else self._boxes.classes)
        self._length_s = min(duration_s or self._index.length_s, self._index.length_s)
        self._image(0)  # raises for a file that cannot be decoded, before a run starts

    def __reduce__(self) -> tuple[type[VideoStream], tuple[str, tuple[int, int], float, float]]:
        return type(self), self._arguments

    @property
    def name(self) -> str:
        return f"video:{self._path}"

    @property
    def fps(self) -> float:
        return self._arguments[2]

    @property
    def duration_s(self) -> float:
        return self._length_s

    @property
    def size(self) -> tuple[int, int]:
        return self._arguments[1]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names in classes.txt, else of the boxes, else of the streets."""
        return self._classes

    @property
    def _frame_size(self) -> tuple[int, int]:
        context = self._container.streams.video[0].codec_context
        return context.height, context.width

    @property
    def has_truth(self) -> bool:
        return self._labels is not None or self._boxes is not None

    def changes_s(self) -> tuple[float, ...]:
        """Return no times: a file does not record its scene changes."""
        return ()

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Read the frames at these times."""
        times = np.asarray(times_s, np.float64)
        numbers = [self._number_at(float(time_s)) for time_s in times]
        images = np.empty((len(times), *self.size, 3), np.uint8)
        for row in sorted(range(len(times)), key=lambda row: numbers[row]):  # decoding forward is cheap
            images[row] = self._image(numbers[row])
        labels = None
        if self._labels is not None:
            labels = np.empty((len(times), *self.size), np.uint8)
            for row, number in enumerate(numbers):
                labels[row] = self._label(self._labels, number)
        boxes = None
        if self._boxes is not None:
            boxes = tuple(self._boxes.at(number, self._frame_size, self.size) for number in numbers)
        return Frames(times, images, np.zeros(len(times), np.int32), labels, boxes)

    def check(self) -> None:
        """Read all label maps, which is fast, then all frames; raise DataError at an unusable one."""
        times = frame_times(self, 0, self.duration_s)
        numbers = sorted({self._number_at(float(time_s)) for time_s in times})
        if self._labels is not None:
            for number in numbers:
                self._label(self._labels, number)
        for number in numbers:
            self._image(number)

    def _number_at(self, time_s: float) -> int:
        shown_s = frame_number(self, time_s) / self.fps
        return max(0, bisect_right(self._index.starts_s, shown_s + self._index.tolerance_s) - 1)

    def _open(self) -> InputContainer:
        if not self._path.is_file():
            raise DataError(f"There is no video file '{self._path}'. Give the path of a file, as in video:clips/a.mp4.")
        if (size := self._path.stat().st_size) > MAX_VIDEO_BYTES:
            raise self._unreadable(f"it has {size:,} bytes, allowed are {MAX_VIDEO_BYTES:,}")
        try:
            container = av.open(str(self._path), metadata_errors="replace")  # titles may be in any encoding
        except UNREADABLE as error:
            raise self._unreadable(str(error)) from error
        if not container.streams.video:
            raise self._unreadable("it holds no video")
        context = container.streams.video[0].codec_context
        if context.width * context.height > MAX_FRAME_PX:
            raise self._unreadable(
                f"its frames have {context.width} x {context.height} pixels, allowed are {MAX_FRAME_PX:,}"
            )
        context.thread_count = 1  # streams run in parallel, each decoder on one thread
        return container

    def _unreadable(self, reason: str) -> DataError:
        return DataError(
            f"'{self._path}' cannot be read as a video: {reason}. "
            "Give a file that ffmpeg decodes, such as H.264 in MP4."
        )

    @cached_property
    def _index(self) -> _Index:
        """Return the index of all frames, from packets without decoding."""
        packets: list[tuple[int, int, bool]] = []
        with self._open() as container:
            stream = container.streams.video[0]
            base_s = float(stream.time_base or 1)
            rate = float(stream.average_rate or 25)
            counted = stream.codec_context.codec.name in UNSTAMPED_CODECS and stream.codec_context.has_b_frames
            try:
                for packet in container.demux(stream):
                    stamp = packet.dts if packet.pts is None else packet.pts
                    if stamp is not None and packet.size:
                        packets.append((stamp, stamp if packet.dts is None else packet.dts, packet.is_keyframe))
            except UNREADABLE as error:
                raise self._unreadable(str(error)) from error
        if not packets:
            raise self._unreadable("it holds no frame")
        # In a file with B-frames, presentation times are not in order: times in order are decoding times.
        counted = counted and all(before[0] < after[0] for before, after in pairwise(packets))
        packets.sort()
        starts_s = tuple((stamp - packets[0][0]) * base_s for stamp, *_ in packets)
        if starts_s[-1] > MAX_LENGTH_S:
            raise self._unreadable(f"its frames lie {starts_s[-1]:.3g} s apart, allowed are {MAX_LENGTH_S:g}")
        tolerance_s = max(ROUNDING_S, base_s * _rounding_ticks([stamp for stamp, *_ in packets]))
        length_s, count = starts_s[-1] + 1 / rate, round(starts_s[-1] * rate) + 1
        return _Index(
            stamps=tuple(stamp for stamp, _, _ in packets),
            decoded=tuple(stamp for _, stamp, _ in packets),
            starts_s=starts_s,
            keys=tuple(number for number, (*_, is_key) in enumerate(packets) if is_key and not counted) or (0,),
            tolerance_s=tolerance_s,
            length_s=count / rate if abs(length_s - count / rate) <= tolerance_s else length_s,
            counted=counted,
        )

    def _image(self, number: int) -> Pixels:
        """Return a decoded frame; decoding continues after the last one unless a key frame is between."""
        if number not in self._decoded:
            key = self._index.keys[max(0, bisect_right(self._index.keys, number) - 1)]
            height, width = self.size
            try:
                if self._frames is None or not key <= self._next <= number:
                    self._seek(key)
                frame = self._decode_to(number)
                image = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")
            except UNREADABLE as error:
                self._frames = None
                raise self._unreadable(f"frame {number}: {error}") from error
            self._decoded[number] = image.astype(np.uint8, copy=False)
            if len(self._decoded) > _CACHED_FRAMES:
                self._decoded.popitem(last=False)
        return self._decoded[number]

    def _seek(self, key: int) -> None:
        """Seek to a key frame or before it; tries several times, as some containers seek by decoding times."""
        stream, index = self._container.streams.video[0], self._index
        first_packet = min(index.decoded)
        for target in (first_packet,) if index.counted else (index.stamps[key], index.decoded[key], first_packet):
            self._container.seek(target, stream=stream, backward=True)
            frames = self._container.decode(stream)
            first = next(frames, None)
            self._frames, self._next = chain([] if first is None else [first], frames), key
            shown = None if first is None else _shown_at(first)
            if shown is not None and shown <= index.stamps[key]:
                break

    def _decode_to(self, number: int) -> VideoFrame:
        index = self._index
        assert self._frames is not None
        for frame in self._frames:
            if index.counted:
                reached = self._next == number
                self._next += 1
            else:
                shown = _shown_at(frame)
                reached = shown is not None and shown >= index.stamps[number]
            if reached:
                self._next = number + 1
                return frame
        self._frames = None
        raise self._unreadable(f"frame {number} of {len(index.stamps)} is missing")

    def _label(self, folder: Path, number: int) -> Pixels:
        """Return a frame's label map; a frame without one is IGNORE everywhere."""
        height, width = self.size
        path = folder / f"gt_{number:06d}.png"
        if not path.is_file():
            return np.full((height, width), IGNORE, np.uint8)
        try:
            with Image.open(path) as image:
                values = np.asarray(image)
        except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
            raise DataError(f"Label map '{path}' cannot be read: {error}. Write it again as an 8-bit PNG.") from error
        if values.ndim != 2 or values.dtype != np.uint8:
            raise DataError(
                f"Label map '{path}' is not 8-bit with one value per pixel. Store class numbers, not colours."
            )
        foreign = sorted(set(np.unique(values).tolist()) - {*range(len(self._classes)), IGNORE})
        if foreign:
            raise DataError(
                f"Label map '{path}' holds the values {foreign}, known are 0 to {len(self._classes) - 1} "
                f"and {IGNORE} for unknown. Name all classes in classes.txt next to the maps, one per line."
            )
        return np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)


def _shown_at(frame: VideoFrame) -> int | None:
    """Return a frame's presentation time; its decoding time if it has none."""
    return frame.dts if frame.pts is None else frame.pts


def _rounding_ticks(stamps: Sequence[int]) -> int:
    """Return the ticks by which rounding may move a frame: 1 for unequal gaps in a fine time base, else 0."""
    gaps = [after - before for before, after in pairwise(stamps)]
    return int(len(set(gaps)) > 1 and median(gaps) > 2)


def _find_labels(path: Path) -> Path | None:
    """Return the folder of the label maps: PATH.labels, or the folder of the file; None without maps."""
    for folder in (path.with_name(f"{path.name}.labels"), path.parent):
        if next(folder.glob("gt_*.png"), None) is not None:
            return folder
    return None


def _read_classes(path: Path) -> tuple[str, ...] | None:
    for folder in (path.with_name(f"{path.name}.labels"), path.parent):
        file = folder / "classes.txt"
        if file.is_file():
            if file.stat().st_size > MAX_CLASSES_BYTES:
                raise DataError(f"'{file}' has more than {MAX_CLASSES_BYTES:,} bytes; name one class per line.")
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"'{file}' cannot be read: {error}. Write the names as UTF-8, one per line.") from error
            names = tuple(line.strip() for line in text.splitlines() if line.strip())
            if not 0 < len(names) <= MAX_PIXEL_CLASSES:
                raise DataError(
                    f"'{file}' names {len(names)} classes, allowed are 1 to {MAX_PIXEL_CLASSES}, one per line."
                )
            return names
    return None
