"""H.264 as in AMS: encode a buffer of sampled frames as one short clip, in two passes of libx264.

Differs from the paper: the budget is in bits per pixel, so that it applies to every frame size (200 kbit for a frame of
1024 × 512 is 0.38); x264's version string (an SEI unit of about 700 bytes) is not sent. Two passes use too little of
the budget for small frames and short clips, at worst a sixth; the bytes sent are counted. `fit` searches the best
constant quality within the budget instead, which is usual for clips that are too short for two passes. Macroblock trees
are off, because libx264 reads uninitialised memory with them: equal frames gave different bytes.
"""

from __future__ import annotations

import bisect
import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

Images = npt.NDArray[np.uint8]
START = re.compile(rb"\x00\x00\x00?\x01")
HEADER_BITS = re.compile(r" misc:(\d+)")  # of each frame, in the statistics of the first pass
SEI = 6  # type of a unit of supplemental information
ALIGNMENT = 64  # pixels of a decoded side, at most
LOWEST_QUALITY = 51  # x264's largest constant rate factor
SAME_BYTES = "threads=1:mbtree=0"  # equal frames give equal bytes


@dataclass(frozen=True)
class H264:
    """libx264 in two passes, or at the best constant quality within the budget."""

    bits_per_pixel: float = 0.38
    fit: bool = False
    preset: str = "medium"
    fps: int = 10  # the declared rate; capture times are sent with the clip

    def encode(self, images: Images) -> tuple[bytes, int]:
        """Encode to an Annex B stream without SEI units; also return the length with them."""
        stream = self._fitting(_pad(images)) if self.fit else self._two_passes(_pad(images))
        return without_sei(stream), len(stream)

    def decode(self, body: bytes, shape: tuple[int, ...]) -> Images:
        """Decode a stream of exactly the frames of this shape; refuse another one at its first other frame."""
        import av

        decoder, images, count = av.CodecContext.create("h264", "r"), np.empty(shape, dtype=np.uint8), 0
        _, height, width, _ = shape
        decoder.thread_count, decoder.options = 1, {"max_pixels": str(_aligned(height) * _aligned(width))}
        try:
            for packet in (*decoder.parse(body), *decoder.parse(None), None):
                for frame in decoder.decode(packet):
                    if count == len(images) or (frame.height, frame.width) != (height + height % 2, width + width % 2):
                        raise WireError(f"torn: the clip holds other frames than {len(images)} of {height} × {width}")
                    images[count] = frame.to_ndarray(format="rgb24")[:height, :width]
                    count += 1
        except (av.FFmpegError, MemoryError) as error:
            raise WireError(f"torn: the clip does not decode ({first_line(error)})") from error
        if count != len(images):
            raise WireError(f"torn: the clip holds {count} frames, expected {len(images)} of {height} × {width}")
        return images

    def _two_passes(self, images: Images) -> bytes:
        """Encode in two passes; libx264 stores the first pass's statistics in a temporary folder."""
        import av

        with tempfile.TemporaryDirectory(prefix="driftlab-") as folder:
            stats = Path(folder) / "stats"
            first, second = (f"pass={number}:stats={stats}" for number in (1, 2))
            self._run(images, first)
            if self._is_short(images, stats.read_text(encoding="utf-8")):
                return self._fitting(images)
            try:
                return self._run(images, second)
            except av.error.ExternalError:  # x264 refuses the second pass for another reason
                return self._fitting(images)

    def _is_short(self, images: Images, stats: str) -> bool:
        """Return whether the headers exceed the budget: x264 would refuse the second pass and leak 0.3 MB."""
        kilobits_per_s = self._bit_rate(images) // 1000  # as x264 rounds it
        return kilobits_per_s * 1000 * len(images) / self.fps < sum(map(int, HEADER_BITS.findall(stats)))

    def _bit_rate(self, images: Images) -> int:
        _, height, width, _ = images.shape
        bits_per_s: int = round(self.bits_per_pixel * height * width * self.fps)
        return max(1000, bits_per_s)

    def _fitting(self, images: Images) -> bytes:
        """Encode at the best quality within the budget, or at the lowest quality if none fits."""
        budget_bytes = self.bits_per_pixel * images[..., 0].size / 8
        best_crf = bisect.bisect_left(
            range(LOWEST_QUALITY),
            True,
            key=lambda crf: len(without_sei(self._run(images, f"crf={crf}"))) <= budget_bytes,
        )
        return self._run(images, f"crf={best_crf}")

    def _run(self, images: Images, params: str) -> bytes:
        """Encode in one pass with these parameters of x264."""
        import av

        _, height, width, _ = images.shape
        sink = io.BytesIO()
        with av.open(sink, "w", format="h264") as container:
            options = {"preset": self.preset, "x264-params": f"{params}:{SAME_BYTES}"}
            stream: Any = container.add_stream("libx264", rate=self.fps, options=options)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.bit_rate = self._bit_rate(images)
            stream.thread_count = 1
            for image in images:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
        return sink.getvalue()


def units(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Split an Annex B stream into its units; yield the type and the bytes, start code included."""
    marks = list(START.finditer(stream))
    stops = [*(mark.start() for mark in marks[1:]), len(stream)]
    for mark, stop in zip(marks, stops, strict=True):
        yield stream[mark.end()] & 31, stream[mark.start() : stop]


def without_sei(stream: bytes) -> bytes:
    """Remove the SEI units, which describe the encoder; the frames are unchanged."""
    return b"".join(unit for kind, unit in units(stream) if kind != SEI)


def _aligned(side: int) -> int:
    """Return a side as the decoder allocates it."""
    return -(-side // ALIGNMENT) * ALIGNMENT


def _pad(images: Images) -> Images:
    """Repeat the last row or column where a side is odd, as H.264 requires even sides."""
    _, height, width, _ = images.shape
    return np.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
