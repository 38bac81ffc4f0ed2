"""How sampled frames are packed for the uplink; the server learns from what the packing leaves of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable

Images = npt.NDArray[np.uint8]  # [n, height, width, 3], RGB


@dataclass(frozen=True, eq=False)
class Packed:
    """Frames on the link, and what the other end sees of them."""

    payload: bytes
    frames: Images
    net_bytes: int  # what counts: the payload without what the encoder says about itself

    @property
    def gross_bytes(self) -> int:
        return len(self.payload)


def pack(images: Images, codec: str = "jpeg") -> Packed:
    """Pack frames by a codec's name; the same frames give the same bytes."""
    if codec not in CODECS:
        raise unknown_name("uplink codec", codec, CODECS)
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise RequestError(f"frames are uint8 [n, height, width, 3], given {images.dtype} {images.shape}")
    if not len(images):
        return Packed(b"", images, 0)
    return CODECS[codec](images)


def _still(images: Images, extension: str, options: list[int]) -> Packed:
    """Pack every frame as a picture of its own."""
    import cv2

    pictures = [cv2.imencode(extension, np.ascontiguousarray(image[..., ::-1]), options)[1] for image in images]
    decoded = np.stack([np.asarray(cv2.imdecode(picture, cv2.IMREAD_COLOR))[..., ::-1] for picture in pictures])
    payload = b"".join(picture.tobytes() for picture in pictures)
    return Packed(payload, np.asarray(decoded, dtype=np.uint8), len(payload))


def _jpeg(images: Images, quality: int = 75) -> Packed:
    import cv2

    return _still(images, ".jpg", [cv2.IMWRITE_JPEG_QUALITY, quality])


def _png(images: Images) -> Packed:
    import cv2

    return _still(images, ".png", [cv2.IMWRITE_PNG_COMPRESSION, 6])


CODECS: dict[str, Callable[[Images], Packed]] = {"jpeg": _jpeg, "png": _png}
