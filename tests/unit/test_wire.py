"""Every kind of message is refused if it is damaged."""

from __future__ import annotations

import contextlib
import tracemalloc
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import WireError
from driftlab.platform.core import wire
from driftlab.platform.networks.tasks import boxes
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION
from driftlab.platform.streaming.wire import masks, samples, values
from driftlab.platform.streaming.wire.delta import MASKS, VALUES

HEIGHT, WIDTH = 12, 16
INDICES, SIZE = np.array([0, 3, 260, 511, 530, 1290]), 1300
MASK_CODECS = [name for name in MASKS if name is not None]


class Message(NamedTuple):
    data: bytes
    read: Callable[[bytes], object]


def messages() -> dict[str, Message]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, (HEIGHT, WIDTH), dtype=np.uint8)
    found = np.array([[1, 2, 2, 8, 9], [3, 0, 0, 4, 4]], np.float32)
    images = rng.integers(0, 255, (2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    frames = samples.pack(images, "png").payload
    return {
        "labels": Message(SEGMENTATION.pack(labels), lambda data: SEGMENTATION.unpack(data, HEIGHT, WIDTH)),
        "class": Message(CLASSIFICATION.pack(np.uint8(7)), lambda data: CLASSIFICATION.unpack(data, HEIGHT, WIDTH)),
        "boxes": Message(DETECTION.pack(found), lambda data: DETECTION.unpack(data, HEIGHT, WIDTH)),
        "frames": Message(frames, lambda data: samples.unpack(data, images.shape, "png")),
    }


MESSAGES = messages()


@pytest.mark.parametrize("kind", MESSAGES)
class TestEveryMessage:
    @pytest.mark.slow
    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_flipped_bits_are_refused(self, kind, data):
        message = MESSAGES[kind]
        bits = np.unpackbits(np.frombuffer(message.data, dtype=np.uint8))
        flipped = data.draw(st.lists(st.integers(0, len(bits) - 1), min_size=1, max_size=8, unique=True))
        bits[flipped] ^= 1
        with pytest.raises(WireError):
            message.read(np.packbits(bits).tobytes())

    @settings(max_examples=50, deadline=None)
    @given(data=st.data())
    def test_a_cut_and_appended_bytes_are_refused(self, kind, data):
        message = MESSAGES[kind]
        for bent in (
            message.data[: data.draw(st.integers(0, len(message.data) - 1))],
            message.data + data.draw(st.binary(min_size=1, max_size=20)),
        ):
            with pytest.raises(WireError):
                message.read(bent)

    @settings(max_examples=50, deadline=None)
    @given(extra=st.binary(min_size=1, max_size=20))
    def test_bytes_appended_under_a_valid_checksum_are_refused(self, kind, extra):
        message = MESSAGES[kind]
        with pytest.raises(WireError):
            message.read(wire.seal(wire.unseal(message.data) + extra))

    @settings(max_examples=50, deadline=None)
    @given(body=st.binary(max_size=60), squeezed=st.booleans())
    def test_garbage_under_a_valid_checksum_raises_wire_errors_only(self, kind, body, squeezed):
        with contextlib.suppress(WireError):
            MESSAGES[kind].read(wire.pack(body) if squeezed else wire.seal(body))

    @pytest.mark.slow
    def test_a_message_that_would_inflate_far_beyond_its_frame_is_refused(self, kind):
        squeeze = zlib.compressobj(9)
        bomb = b"".join(squeeze.compress(bytes(2**20)) for _ in range(64)) + squeeze.flush()
        tracemalloc.start()
        try:
            with pytest.raises(WireError):
                MESSAGES[kind].read(wire.seal(bomb))
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()


def test_impossible_boxes_are_refused():
    for strange in (np.nan, np.inf, -1.0):
        message = boxes.pack(np.array([[strange, 0, 0, 4, 4]], np.float32))
        with pytest.raises(WireError, match="torn"):
            boxes.unpack(message, HEIGHT, WIDTH)


@pytest.mark.parametrize("name", MASK_CODECS)
@settings(max_examples=100, deadline=None)
@given(extra=st.binary(min_size=1, max_size=20), indices=st.sets(st.integers(0, SIZE - 1), max_size=40))
def test_bytes_after_a_mask_are_refused(name, extra, indices):
    index = np.array(sorted(indices), dtype=np.int64)
    mask = masks.encode(index, SIZE, name)
    assert masks.decode(mask, SIZE, len(index), name).tolist() == index.tolist()
    for appended in (extra, bytes(len(extra)), b"\xff" * len(extra)):
        with pytest.raises(WireError, match="torn"):
            masks.decode(mask + appended, SIZE, len(index), name)


@pytest.mark.parametrize("name", MASK_CODECS)
def test_a_mask_that_was_cut_is_refused(name):
    mask = masks.encode(INDICES, SIZE, name)
    for length in range(len(mask)):
        with pytest.raises(WireError, match="torn"):
            masks.decode(mask[:length], SIZE, len(INDICES), name)


def test_the_gaps_of_a_mask_end_with_an_index():
    with pytest.raises(WireError, match="torn"):
        masks.decode(zlib.compress(bytes([7, 255])), SIZE, 1, "gaps")


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=30, deadline=None)
@given(extra=st.binary(min_size=1, max_size=20), count=st.integers(0, 130))
def test_values_of_another_length_are_refused(name, extra, count):
    data, _ = values.encode(np.linspace(-1, 1, count, dtype=np.float32), name)
    assert len(values.decode(data, count, name)) == count
    for bent in (data + extra, data[:-1]) if data else (extra,):
        with pytest.raises(WireError, match="torn"):
            values.decode(bent, count, name)
