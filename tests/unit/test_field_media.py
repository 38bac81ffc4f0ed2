"""The decoder of untrusted media: equal frames, limits of a child process, and the cost of a crash."""

from __future__ import annotations

import os
import resource
import signal
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.wire import seal
from driftlab.platform.field import media
from driftlab.platform.field.media import MediaDecoder
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire import samples
from driftlab.platform.streaming.wire.samples import codec_of, pack

SIZE = (32, 48)
IMAGES = np.random.default_rng(0).integers(0, 255, (3, *SIZE, 3)).astype(np.uint8)
PNG = cv2.imencode(".png", IMAGES[0, ..., ::-1])[1].tobytes()


@pytest.fixture(scope="module")
def decoder():
    one = MediaDecoder()
    yield one
    one.close()


def sampling(codec, count=3, scale=1):
    return Sampling(tuple(range(count)), 3.0, codec=codec, scale=scale)


def process():
    """Return the newest child."""
    children = (one for one in psutil.Process().children() if media.__name__ in one.cmdline())
    return max(children, key=psutil.Process.create_time)


def png_of(height, width, data=b""):
    """Return a PNG image of one colour that declares a size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.slow
def test_a_child_decodes_what_this_process_would(decoder):
    for codec, scale in (("jpeg", 1), ("png", 2), ("h264", 1)):
        payload = pack(IMAGES.repeat(scale, axis=1).repeat(scale, axis=2), codec).payload
        ours = samples.receive(payload, sampling(codec, scale=scale), SIZE)
        theirs = decoder.receive(payload, sampling(codec, scale=scale), SIZE)
        assert np.array_equal(ours.payload.images, theirs.payload.images)
        assert theirs.payload.images.flags.writeable
        assert (ours.facts, ours.payload.scenes.tolist()) == (theirs.facts, theirs.payload.scenes.tolist())
    first, fault, second = decoder.images([PNG, b"no image", PNG], SIZE)
    assert np.array_equal(first, IMAGES[0])
    assert np.array_equal(second, IMAGES[0])
    assert "not a PNG or JPEG image" in str(fault)
    assert decoder.receive(b"torn", sampling("jpeg"), SIZE).facts.refused.startswith("torn")
    assert decoder.cpu_s > 0


@pytest.mark.slow
def test_bombs_are_refused_in_little_memory(decoder):
    decoder.images([PNG], SIZE)
    before = process().memory_info().rss
    clip = codec_of("h264").encode(np.zeros((20, 1024, 1024, 3), dtype=np.uint8))[0]
    assert "torn" in decoder.receive(seal(clip), sampling("h264", 1), SIZE).facts.refused
    large = png_of(32_000, 32_000, bytes(10_000))
    still = len(large).to_bytes(4, "little") + large
    assert "torn" in decoder.receive(seal(still), sampling("png", 1), SIZE).facts.refused
    (fault,) = decoder.images([large], SIZE)
    assert isinstance(fault, RequestError)
    assert process().memory_info().rss - before < 60 * 2**20


@pytest.mark.slow
def test_a_crash_costs_one_image(decoder, monkeypatch):
    decoder.images([PNG], SIZE)
    first = process().pid
    os.kill(first, signal.SIGKILL)
    (image,) = decoder.images([PNG, PNG], SIZE)[:1]
    assert np.array_equal(image, IMAGES[0])
    assert process().pid != first


@pytest.mark.slow
def test_an_image_above_the_limits_of_the_child_costs_only_itself(monkeypatch):
    monkeypatch.setattr(media, "MEMORY_BYTES", 40 * 2**20)
    one = MediaDecoder()
    large = png_of(4000, 4000, bytes(4000 * (1 + 3 * 4000)))
    good, fault, other = one.images([PNG, large, PNG], SIZE)
    assert np.array_equal(good, IMAGES[0])
    assert isinstance(fault, RequestError)
    assert np.array_equal(other, IMAGES[0])
    child = process()
    child.suspend()
    monkeypatch.setattr(media, "WALL_S", 0.5)
    assert "needed more than" in one.receive(pack(IMAGES, "png").payload, sampling("png"), SIZE).facts.refused
    assert not child.is_running()
    monkeypatch.setattr(media, "WALL_S", 60.0)
    assert not one.receive(pack(IMAGES, "png").payload, sampling("png"), SIZE).facts.refused
    one.close()


@pytest.mark.slow
def test_a_child_has_limits_and_no_token(decoder, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_TOKEN", "secret")
    decoder.close()
    decoder.images([PNG], SIZE)
    child = process()
    assert b"secret" not in Path(f"/proc/{child.pid}/environ").read_bytes()
    assert resource.prlimit(child.pid, resource.RLIMIT_AS)[0] < media.MEMORY_BYTES + child.memory_info().vms + 2**28
    assert resource.prlimit(child.pid, resource.RLIMIT_CPU)[0] <= media.CPU_S + 5
    decoder.close()
    assert not child.is_running()
