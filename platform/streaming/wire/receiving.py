"""Decoding of samples that came over the link."""

from __future__ import annotations

import numpy as np

from driftlab.datasets.frames import Frames
from driftlab.errors import WireError
from driftlab.platform.core.records import Received, Reply
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import Images, unpack
from driftlab.platform.world.damage import Damage, damaged

UNKNOWN_SCENE = -1  # the scene of a frame from the link: unknown


def receive(payload: bytes, sampling: Sampling, size: tuple[int, int], damage: Damage | None = None) -> Reply:
    """Decode a payload; frames sent larger than the student's input are downscaled. Truth is never sent."""
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
    """Average blocks of pixels of frames that were sent larger than the student's input."""
    if scale == 1:
        return images
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height // scale, scale, width // scale, scale, channels)
    return np.asarray(np.rint(blocks.mean(axis=(2, 4))), dtype=np.uint8)
