"""Wire format of updates: exact, near the size bound, and robust to corruption."""

from __future__ import annotations

import time
import zlib

import numpy as np
import pytest
from delta_factory import change, layout
from scipy.special import gammaln

from driftlab.errors import WireError
from driftlab.platform.adaptation import masks
from driftlab.platform.streaming.wire import delta
from driftlab.platform.streaming.wire import masks as mask_codecs
from driftlab.platform.streaming.wire import values as value_codecs
from driftlab.platform.streaming.wire.delta import MASKS, VALUES, Change, Format
from driftlab.platform.world.link import MessageDamage

CODECS = [codec for codec in MASKS if codec is not None]


def mask_bound_bits(size: int, count: int) -> float:
    return float(gammaln(size + 1) - gammaln(count + 1) - gammaln(size - count + 1)) / np.log(2)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 7, 1003, 70_001])
def test_mask_round_trip_is_exact(codec, size):
    rng = np.random.default_rng(size)
    for count in {0, 1, size // 2, size}:
        index = np.sort(rng.choice(size, count, replace=False))
        data = mask_codecs.encode(index, size, codec)
        assert np.array_equal(mask_codecs.decode(data, size, count, codec), index)


@pytest.mark.parametrize("codec", CODECS)
def test_empty_and_full_masks_round_trip(codec):
    for index in ([0], [999_999], [0, 999_999], [*range(600), 999_999], [255, 510, 511, 767]):
        data = mask_codecs.encode(np.array(index), 1_000_000, codec)
        assert mask_codecs.decode(data, 1_000_000, len(index), codec).tolist() == index


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("mask", CODECS)
def test_both_ends_hold_the_same_bits(values, mask):
    for count in (0, 1, 500, 1001):
        before = change(1001, count)
        sent = delta.encode(before, layout(1001), Format(values, mask))
        got = delta.apply(sent.data, before.before, layout(1001), base=0)
        assert got.version == 1
        assert got.vector.tobytes() == sent.vector.tobytes()
        untouched = ~before.changed
        assert got.vector[untouched].tobytes() == before.before[untouched].tobytes()


def test_fp32_is_lossless_and_other_codecs_are_close():
    made = change(10_000, 500)
    worst = {codec: float(np.abs(delta.encode(made, layout(10_000), Format(codec)).residual).max()) for codec in VALUES}
    assert worst["fp32"] == 0
    assert worst["fp16"] <= 2**-11 * np.abs(made.after).max()
    assert worst["bf16"] <= 2**-8 * np.abs(made.after).max()
    peak = np.abs(made.after - made.before).max()
    assert worst["int8"] <= 0.51 * peak / 127
    assert worst["int4"] <= 0.51 * peak / 7


def test_bf16_rounds_to_the_nearest():
    import torch

    values = np.random.default_rng(0).normal(0, 100, 20_000).astype(np.float32)
    data, _ = value_codecs.encode(values, "bf16")
    expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert np.array_equal(value_codecs.decode(data, len(values), "bf16"), expected)


def test_values_too_large_are_clamped_and_counted():
    values = np.array([1e9, -1e9, 1.0, 65504.0], dtype=np.float32)
    data, clamped = value_codecs.encode(values, "fp16")
    assert clamped == 2
    assert value_codecs.decode(data, 4, "fp16").tolist() == [65504.0, -65504.0, 1.0, 65504.0]
    assert value_codecs.encode(np.array([3.4e38], dtype=np.float32), "bf16")[1] == 1


def test_non_finite_weights_are_not_sent():
    made = change(100, 100)
    made.after[3] = np.nan
    with pytest.raises(WireError, match="finite"):
        delta.encode(made, layout(100), Format())


@pytest.mark.parametrize("values", ["int8", "int4"])
def test_error_feedback_sends_rounding_errors(values):
    rng = np.random.default_rng(1)
    size, every = 256, np.ones(256, dtype=bool)
    target = rng.normal(0, 0.1, size).astype(np.float32)
    held, residual = np.zeros(size, dtype=np.float32), None
    for version in range(1, 7):  # the target is constant; only the residual moves the copy closer
        wanted = target if version == 1 else held
        sent = delta.encode(Change(held, wanted, every, version, version - 1), layout(size), Format(values), residual)
        held, residual = sent.vector, sent.residual
    assert np.abs(held - target).max() < 1e-5
    assert np.allclose(held + residual, target, atol=1e-6)


@pytest.mark.slow
def test_sizes_meet_the_bounds():
    size, count, tries = 200_000, 10_000, 25
    bits = dict.fromkeys(CODECS, 0.0)
    for seed in range(tries):
        index = np.sort(np.random.default_rng(seed).choice(size, count, replace=False))
        for codec in CODECS:
            bits[codec] += 8 * len(mask_codecs.encode(index, size, codec)) / tries
    bound = mask_bound_bits(size, count)
    assert all(value >= bound for value in bits.values())
    assert bits["rice"] <= 1.02 * bound + 64
    assert bits["gaps"] <= 1.06 * bound
    assert 1.15 <= bits["gzip"] / bound <= 1.45


def test_rice_follows_the_density_of_each_layer():
    rng = np.random.default_rng(0)
    densities = (0.3, 0.002, 0.05)
    mask = np.concatenate([rng.random(100_000) < density for density in densities])
    bound = sum(mask_bound_bits(100_000, int(part.sum())) for part in np.split(mask, 3))
    assert 8 * len(mask_codecs.encode(np.flatnonzero(mask), len(mask), "rice")) <= 1.04 * bound


@pytest.mark.parametrize("block", [2, 8, 16, 300])
def test_runs_of_blocks_cost_a_bit_per_block_and_little_more(block):
    size = 24_088
    mask = masks.uniform_blocks(size, 0.05, block, np.random.default_rng(block))
    index, blocks = np.flatnonzero(mask), -(-size // block)
    chosen = round(0.05 * blocks)
    data = mask_codecs.encode(index, size, "runs")
    assert np.array_equal(mask_codecs.decode(data, size, len(index), "runs"), index)
    assert 8 * len(data) <= 1.1 * mask_bound_bits(blocks, chosen) + 2 * chosen + 8 * mask_codecs.RUNS.size + 64


def test_runs_up_to_a_partial_block_round_trip():
    for size, block, fraction in ((23, 8, 0.4), (24, 8, 0.4), (7, 8, 1.0), (1, 1, 1.0), (301, 3, 0.5)):
        for seed in range(20):
            index = np.flatnonzero(masks.uniform_blocks(size, fraction, block, np.random.default_rng(seed)))
            data = mask_codecs.encode(index, size, "runs")
            assert np.array_equal(mask_codecs.decode(data, size, len(index), "runs"), index)


def test_messages_meet_the_goals():
    size, count = 400_000, 20_000
    made = change(size, count)
    sizes = {form: len(delta.encode(made, layout(size), Format(*form)).data) for form in
             (("fp16", "rice"), ("fp16", "gzip"), ("int4", "rice"))}  # fmt: skip
    assert sizes["fp16", "rice"] <= 1.03 * (mask_bound_bits(size, count) / 8 + 2 * count)
    assert sizes["int4", "rice"] <= 0.5 * sizes["fp16", "gzip"]


@pytest.mark.parametrize("mask", CODECS)
def test_the_same_change_gives_the_same_bytes_at_any_time(mask, monkeypatch):
    made = []
    for now_s in (1e9, 2e9):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        made.append(delta.encode(change(5000, 250), layout(5000), Format("fp16", mask)).data)
    assert made[0] == made[1]


def test_every_flipped_bit_and_every_cut_is_refused():
    made = change(300, 40)
    data = delta.encode(made, layout(300), Format("int8", "rice")).data
    for bit in range(8 * len(data)):
        bent = bytearray(data)
        bent[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            delta.apply(bytes(bent), made.before, layout(300), base=0)
    for length in range(len(data)):
        with pytest.raises(WireError, match=r"torn|foreign"):
            delta.apply(data[:length], made.before, layout(300), base=0)
    with pytest.raises(WireError, match="torn"):
        delta.apply(data + b"\0", made.before, layout(300), base=0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_mask_of_garbage_is_refused(codec):
    rng = np.random.default_rng(0)
    for _ in range(200):
        data = rng.bytes(int(rng.integers(0, 60)))
        with pytest.raises(WireError):
            mask_codecs.decode(data, 1003, 700, codec)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("mask", CODECS)
def test_garbage_with_a_valid_checksum_is_refused_or_decodes_to_weights(values, mask):
    """A forged checksum leads to a refusal or to finite weights, never to another error."""
    made = change(301, 60)
    body, outcomes = delta.encode(made, layout(301), Format(values, mask)).data[: -delta.CHECKSUM.size], set()
    for seed in range(60):
        bent = MessageDamage("bits" if seed % 3 else "cut", seed).of(body)
        forged = bent + delta.CHECKSUM.pack(zlib.crc32(bent))
        try:
            got = delta.apply(forged, made.before, layout(301), base=0)
        except WireError:
            outcomes.add("refused")
            continue
        outcomes.add("weights")
        assert got.vector.shape == made.before.shape
        assert np.isfinite(got.vector).all()
    assert outcomes == {"refused", "weights"}


def test_non_finite_weights_are_not_applied():
    made = change(100, 100)
    data = bytearray(delta.encode(made, layout(100), Format("fp16")).data)
    data[delta.HEADER.size : delta.HEADER.size + 2] = np.float16("inf").tobytes()
    body = bytes(data[: -delta.CHECKSUM.size])
    with pytest.raises(WireError, match="finite"):
        delta.apply(body + delta.CHECKSUM.pack(zlib.crc32(body)), made.before, layout(100), base=0)


def test_foreign_messages_are_refused():
    made = change(100, 10, version=5, base=4)
    data = delta.encode(made, layout(100), Format()).data
    with pytest.raises(WireError, match="replayed"):
        delta.apply(data, made.before, layout(100), base=5)
    with pytest.raises(WireError, match="out of order"):
        delta.apply(data, made.before, layout(100), base=3)
    with pytest.raises(WireError, match="foreign"):
        delta.apply(data, made.before, layout(100, "v"), base=4)
    with pytest.raises(WireError, match="foreign"):
        delta.apply(b"GIF8" + data[4:], made.before, layout(100), base=4)


def test_a_lost_message_leads_to_a_resync_and_equal_copies():
    form, place = Format("fp16", "rice"), layout(1000)
    server = active = shadow = change(1000, 0).before
    held, refused = 0, 0
    for version in range(1, 6):
        step = change(1000, 50, seed=version)
        after = np.where(step.changed, server + step.after - step.before, server).astype(np.float32)
        sent = delta.encode(Change(server, after, step.changed, version, version - 1), place, form)
        server = sent.vector
        if version == 3:
            continue  # lost on the link
        try:
            active = delta.apply(sent.data, active, place, base=held).vector
            shadow = delta.apply(sent.data, shadow, place, base=held).vector
        except WireError:
            refused += 1
            alone = delta.encode(Change(server, server, None, version, None), place, Format("fp32"))
            active = delta.apply(alone.data, active, place, base=held).vector
            shadow = delta.apply(alone.data, shadow, place, base=held).vector
        held = version
        assert server.tobytes() == active.tobytes() == shadow.tobytes()
    assert refused == 1


def test_a_self_contained_message_has_all_weights():
    made = change(100, 10, base=None)
    for values in VALUES:
        sent = delta.encode(made, layout(100), Format(values))
        anything = np.full(100, 7, dtype=np.float32)
        assert delta.apply(sent.data, anything, layout(100), base=0).vector.tobytes() == sent.vector.tobytes()
    with pytest.raises(ValueError, match="every weight"):
        delta.encode(Change(made.before, made.after, np.zeros(100, dtype=bool), 1, None), layout(100), Format())


@pytest.mark.parametrize("mask", [None, *CODECS])
@pytest.mark.parametrize("extra", [b"\0", b"\xff" * 8])
def test_unexpected_mask_bytes_are_refused_under_a_valid_checksum(mask, extra):
    """A message with all weights has no mask."""
    made = change(301, 301 if mask is None else 60)
    data = delta.encode(made, layout(301), Format("fp16", mask or "rice")).data
    fields = list(delta.HEADER.unpack_from(data))
    assert delta.MASKS[fields[3]] == mask
    end = delta.HEADER.size + fields[-2]
    fields[-2] += len(extra)
    body = delta.HEADER.pack(*fields) + data[delta.HEADER.size : end] + extra + data[end : -delta.CHECKSUM.size]
    with pytest.raises(WireError, match="torn"):
        delta.apply(body + delta.CHECKSUM.pack(zlib.crc32(body)), made.before, layout(301), base=0)
