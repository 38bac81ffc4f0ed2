"""Uplink codecs: reproducible bytes, equal frames at both ends, refusal of torn payloads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from driftlab.errors import RequestError, WireError
from driftlab.platform.core.wire import CHECKSUM, seal
from driftlab.platform.streaming.wire import h264
from driftlab.platform.streaming.wire.samples import (
    CODECS,
    CODING_MACS,
    codec_of,
    coding_macs,
    dimensions_of,
    pack,
    unpack,
)
from driftlab.platform.world.link import MessageDamage


def clip(frames: int = 6, height: int = 48, width: int = 64) -> np.ndarray:
    """Return frames of a smooth moving image with noise, as a video codec expects."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin((x + 3 * t) / 9 + c) * np.cos(y / 11 - c) for t in range(frames) for c in range(3)]
    smooth = np.stack(waves).reshape(frames, 3, height, width).transpose(0, 2, 3, 1)
    return np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    return 10 * np.log10(255**2 / np.mean((a.astype(float) - b) ** 2))


def decoded(images: np.ndarray, codec: str) -> np.ndarray:
    return unpack(pack(images, codec).payload, images.shape, codec)


@pytest.mark.parametrize("codec", CODECS)
class TestEveryCodec:
    @pytest.mark.parametrize("shape", [(6, 48, 64), (1, 48, 64), (2, 47, 63), (3, 33, 64)])
    def test_frames_keep_their_shape_and_look_alike(self, codec, shape):
        images = clip(*shape)
        frames = decoded(images, codec)
        assert frames.shape == images.shape
        assert frames.dtype == np.uint8
        assert codec == "png" or psnr_db(frames, images) > psnr_db(frames, images[..., ::-1]) + 3
        assert codec == "png" or psnr_db(frames, images) > 15

    def test_every_receiver_decodes_the_same_frames(self, codec):
        assert np.array_equal(decoded(clip(), codec), decoded(clip(), codec))

    def test_the_same_frames_give_the_same_bytes(self, codec):
        assert pack(clip(), codec).payload == pack(clip(), codec).payload

    def test_a_torn_payload_is_refused(self, codec):
        images = clip(2)
        payload = pack(images, codec).payload
        for cut in (0, 3, len(payload) // 2, len(payload) - 1):
            with pytest.raises(WireError, match="torn"):
                unpack(payload[:cut], images.shape, codec)
        for place in range(0, len(payload), max(1, len(payload) // 50)):
            bent = bytearray(payload)
            bent[place] ^= 4
            with pytest.raises(WireError, match="torn"):
                unpack(bytes(bent), images.shape, codec)

    def test_garbage_with_a_valid_checksum_is_refused_or_decodes_to_frames(self, codec):
        """A forged checksum leads to a refusal or to frames of the right size."""
        images = clip(2)
        body = pack(images, codec).payload[: -CHECKSUM.size]
        for seed in range(60):
            bent = MessageDamage("bits" if seed % 3 else "cut", seed).of(body)
            try:
                frames = unpack(seal(bent), images.shape, codec)
            except WireError:
                continue
            assert (frames.shape, frames.dtype) == (images.shape, np.uint8)

    def test_payload_with_other_frames_is_refused(self, codec):
        payload = pack(clip(2), codec).payload
        for shape in ((3, 48, 64, 3), (2, 96, 64, 3)):
            with pytest.raises(WireError, match="torn"):
                unpack(payload, shape, codec)

    def test_no_frames_have_no_bytes(self, codec):
        packed = pack(clip()[:0], codec)
        assert (packed.net_bytes, packed.gross_bytes, packed.payload) == (0, 0, b"")
        assert unpack(b"", (0, 48, 64, 3), codec).shape == (0, 48, 64, 3)


def test_png_is_lossless():
    assert np.array_equal(decoded(clip(), "png"), clip())


@pytest.mark.slow
def test_a_higher_number_means_more_bytes_and_better_frames():
    for low, high in (("jpeg:30", "jpeg:95"), ("h264:0.3", "h264:3"), ("h264_fit:0.3", "h264_fit:3")):
        worse, better = pack(clip(), low), pack(clip(), high)
        assert worse.net_bytes < better.net_bytes
        assert psnr_db(decoded(clip(), low), clip()) < psnr_db(decoded(clip(), high), clip())


def test_sei_units_are_removed_and_frames_are_unchanged():
    images = clip()
    codec = h264.H264()
    stream = codec._two_passes(images)
    kinds = [kind for kind, _ in h264.units(stream)]
    assert kinds.count(h264.SEI) == 1
    bare = h264.without_sei(stream)
    assert b"".join(unit for _, unit in h264.units(stream)) == stream
    assert np.array_equal(codec.decode(bare, images.shape), codec.decode(stream, images.shape))
    packed = pack(images, "h264")
    assert packed.gross_bytes - packed.net_bytes == len(stream) - len(bare) > 600


def test_padding_of_odd_sizes_is_removed():
    images = clip(3, 47, 63)
    frames = decoded(images, "h264:6")
    assert psnr_db(frames, images) > psnr_db(frames[:, :-1], images[:, 1:]) + 3
    assert psnr_db(frames, images) > psnr_db(frames[:, :, :-1], images[:, :, 1:]) + 3


def test_the_fitting_codec_stays_within_its_budget():
    for frames in (1, 2, 10):
        images = clip(frames)
        packed = pack(images, "h264_fit:0.5")
        assert 0.3 * images[..., 0].size / 8 < packed.net_bytes <= 0.5 * images[..., 0].size / 8 + 4


@pytest.mark.parametrize("frames", [1, 2])
def test_a_clip_too_short_for_two_passes_stays_within_its_budget(frames):
    packed = pack(clip(frames), "h264:0.5")
    assert unpack(packed.payload, clip(frames).shape, "h264:0.5").shape == clip(frames).shape
    assert packed.net_bytes <= 0.5 * frames * 48 * 64 / 8 + 4


@pytest.mark.parametrize("frames", [1, 2, 12])
def test_second_pass_that_x264_refuses_is_skipped(monkeypatch, frames):
    """Each refusal of x264 leaks 0.3 MB."""
    passes, encode = [], h264.H264._run
    monkeypatch.setattr(h264.H264, "_run", lambda codec, images, how: passes.append(how) or encode(codec, images, how))
    budgets = (0.02, 0.1, 0.5, 2.0)
    refused = 0
    for budget in budgets:
        codec = h264.H264(bits_per_pixel=budget)
        codec.encode(clip(frames))
        begun = [how for how in passes if how.startswith("pass=2")]
        assert len(begun) <= 1 and (not begun or passes[-1] == begun[0]), "a second pass was refused"
        refused += not begun
        passes.clear()
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["h264", "h264_fit"])
def test_bytes_do_not_depend_on_memory_contents(codec):
    """Memory is overwritten and freed between two clips."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(12):
        litter = [bytearray(rng.bytes(int(2 ** rng.uniform(4, 20)))) for _ in range(40)]
        del litter
        seen.add(pack(clip(), codec).payload)
    assert len(seen) == 1


def test_wrong_codecs_are_refused_with_the_allowed_names():
    for wrong in ("jpeg:0", "jpeg:x", "h264:0", "h264:-1", "png:3", "h264_fit:nan"):
        with pytest.raises(RequestError, match="Allowed"):
            codec_of(wrong)
    with pytest.raises(RequestError, match="Did you mean 'jpeg'"):
        codec_of("jpg")
    with pytest.raises(RequestError, match="uint8"):
        pack(clip().astype(np.float32))


def test_every_codec_has_a_cost():
    assert set(CODING_MACS) == set(CODECS)
    assert coding_macs("jpeg:30") == coding_macs("jpeg") == 250
    assert coding_macs("h264_fit:0.5") == 23_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "count", "declared"), [("h264", 4, 1), ("h264", 1, 60), ("jpeg", 1, 1), ("png", 1, 1)]
)
def test_larger_or_more_frames_than_declared_are_not_decoded(codec, count, declared):
    large = codec_of(codec).encode(np.zeros((count, 3000, 3000, 3), dtype=np.uint8))[0]
    many = codec_of("h264").encode(np.zeros((600, 64, 96, 3), dtype=np.uint8))[0] if codec == "h264" else large
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the current value
    before_kb = memory_kb("VmRSS")
    tracemalloc.start()  # sees arrays in memory that the process already has, but not those of PyAV
    for body in (large, many):
        with pytest.raises(WireError, match="torn"):
            codec_of(codec).decode(body, (declared, 64, 96, 3))
    arrays_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (memory_kb("VmHWM") - before_kb) * 2**10 + arrays_bytes < 15 * 2**20


def memory_kb(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def test_dimensions_are_read_from_the_header():
    for codec in ("jpeg", "png"):
        body = codec_of(codec).encode(np.zeros((1, 33, 64, 3), dtype=np.uint8))[0][4:]
        assert dimensions_of(body) == (33, 64)
        assert dimensions_of(body[:20]) == (0, 0)
    assert dimensions_of(b"\xff\xd8\xff\xff\xe0\0\0" * 9) == (0, 0)
