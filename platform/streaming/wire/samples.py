"""Encodings of sampled frames for the uplink; the server trains on the decoded frames.

A codec is a name with an optional number: `jpeg:90` (quality), `h264:0.2` (bits per pixel).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.errors import RequestError, WireError, unknown_name
from driftlab.platform.core.records import Received, Reply
from driftlab.platform.core.wire import CHECKSUM, seal, unseal
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.h264 import H264
from driftlab.platform.world.link import MessageDamage, damaged

UNKNOWN_SCENE = -1  # the scene of a frame from the link: unknown
Images = npt.NDArray[np.uint8]  # [n, height, width, 3], RGB
LENGTH = struct.Struct("<I")
PNG_START, JPEG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8"
FRAME_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # of JPEG segments that begin with the size of the frame


class FrameCodec(Protocol):
    """An encoding of frames in both directions."""

    def encode(self, images: Images) -> tuple[bytes, int]:
        """Return the bytes to send, and the length of the encoder's output before units were removed."""
        ...

    def decode(self, body: bytes, shape: tuple[int, ...]) -> Images:
        """Decode the frames; refuse bytes that do not hold frames of this shape."""
        ...


@dataclass(frozen=True, eq=False)
class EncodedFrames:
    """Encoded frames."""

    payload: bytes
    gross_bytes: int  # with the encoder's SEI units, which are not sent

    @property
    def net_bytes(self) -> int:
        return len(self.payload)


@dataclass(frozen=True)
class Still:
    """Each frame as a separate image: its length, then its bytes."""

    extension: str
    parameter: str
    number: int

    def encode(self, images: Images) -> tuple[bytes, int]:
        import cv2

        options = [getattr(cv2, self.parameter), self.number]
        encoded = [cv2.imencode(self.extension, np.ascontiguousarray(image[..., ::-1]), options)[1] for image in images]
        body = b"".join(LENGTH.pack(len(image)) + image.tobytes() for image in encoded)
        return body, len(body)

    def decode(self, body: bytes, shape: tuple[int, ...]) -> Images:
        import cv2

        frames, read = np.empty(shape, dtype=np.uint8), 0
        for frame in frames:
            if read + LENGTH.size > len(body):
                raise WireError(f"torn: {len(body)} bytes do not hold {len(frames)} pictures")
            start = read + LENGTH.size
            read = start + LENGTH.unpack_from(body, read)[0]
            encoded = body[start:read]
            fits = dimensions_of(encoded) == frame.shape[:2]
            decoded = cv2.imdecode(np.frombuffer(encoded, dtype=np.uint8), cv2.IMREAD_COLOR) if fits else None
            if decoded is None or decoded.shape != frame.shape:
                raise WireError("torn: a picture does not decode to the size of the frames")
            frame[:] = np.asarray(decoded)[..., ::-1]
        if read != len(body):
            raise WireError(f"torn: {len(frames)} pictures end after {read} of {len(body)} bytes")
        return frames


def dimensions_of(image: bytes) -> tuple[int, int]:
    """Return height and width from the header of a PNG or JPEG image; zeros for other bytes."""
    if image.startswith(PNG_START) and len(image) >= 24:
        width, height = struct.unpack_from(">II", image, 16)
        return height, width
    place = 2 if image.startswith(JPEG_START) else len(image)
    while place + 9 <= len(image) and image[place] == 0xFF:
        marker, length = image[place + 1], int.from_bytes(image[place + 2 : place + 4], "big")
        if marker in FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", image, place + 5)
            return height, width
        place += 1 if marker == 0xFF else 2 + length
    return 0, 0


CODECS: Mapping[str, FrameCodec] = {
    "jpeg": Still(".jpg", "IMWRITE_JPEG_QUALITY", 75),
    "png": Still(".png", "IMWRITE_PNG_COMPRESSION", 6),
    "h264": H264(),
    "h264_fit": H264(fit=True),
}


# Cost of encoding a pixel in multiply-accumulates: processor seconds of libjpeg, zlib and libx264 on an x86 core with
# 20 GMAC/s, the median of five runs over street frames (`python benchmarks/codecs.py` repeats the measurement).
CODING_MACS: Mapping[str, float] = {"jpeg": 250, "png": 4000, "h264": 6300, "h264_fit": 23_000}


def coding_macs(text: str) -> float:
    """Return the cost of encoding a pixel, in multiply-accumulates."""
    return CODING_MACS[text.partition(":")[0]]


def codec_of(text: str) -> FrameCodec:
    """Return the codec of a name with an optional number; refuse an unknown name or a wrong number."""
    name, colon, number = text.partition(":")
    if name not in CODECS:
        raise unknown_name("uplink codec", name, CODECS)
    codec = CODECS[name]
    if not colon:
        return codec
    try:
        if isinstance(codec, Still) and name == "jpeg" and 1 <= int(number) <= 100:
            return dataclasses.replace(codec, number=int(number))
        if isinstance(codec, H264) and 0 < float(number) <= 24:
            return dataclasses.replace(codec, bits_per_pixel=float(number))
    except ValueError:
        pass
    allowed = "jpeg:1 to jpeg:100, png, h264:B and h264_fit:B with B bits per pixel in (0, 24]"
    raise RequestError(f"Uplink codec '{text}' has a wrong number. Allowed: {allowed}.")


def codec_faults(text: str) -> list[str]:
    """List the faults of a codec's name as a parameter."""
    try:
        codec_of(text)
    except RequestError as error:
        return [f"'codec' is {text!r}: {error}"]
    return []


def pack(images: Images, codec: str = "jpeg") -> EncodedFrames:
    """Encode frames; equal frames give equal bytes."""
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise RequestError(f"Frames are uint8 [n, height, width, 3], given {images.dtype} {list(images.shape)}.")
    if not len(images):
        codec_of(codec)
        return EncodedFrames(b"", 0)
    body, gross = codec_of(codec).encode(images)
    return EncodedFrames(seal(body), gross + CHECKSUM.size)


def unpack(payload: bytes, shape: tuple[int, ...], codec: str = "jpeg") -> Images:
    """Decode frames of a shape; refuse damaged bytes."""
    if not shape[0] and not payload:
        return np.empty(shape, dtype=np.uint8)
    return codec_of(codec).decode(unseal(payload), shape)


def receive(payload: bytes, sampling: Sampling, size: tuple[int, int], damage: MessageDamage | None = None) -> Reply:
    """Decode a payload; downscale larger frames to the student's input. It has no ground truth."""
    times_s = np.asarray(sampling.times_s, dtype=np.float64)
    height, width = size
    shape = (len(times_s), height * sampling.scale, width * sampling.scale, 3)
    try:
        images = unpack(damaged(payload, damage), shape, sampling.codec)
    except WireError as error:
        return Reply(Received(0, str(error)))
    scenes = np.full(len(times_s), UNKNOWN_SCENE, dtype=np.int32)
    return Reply(Received(len(times_s)), payload=Frames(times_s, _shrunk(images, sampling.scale), scenes))


def _shrunk(images: Images, scale: int) -> Images:
    """Downscale frames to the student's input by averaging blocks of pixels."""
    if scale == 1:
        return images
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height // scale, scale, width // scale, scale, channels)
    return np.asarray(np.rint(blocks.mean(axis=(2, 4))), dtype=np.uint8)
