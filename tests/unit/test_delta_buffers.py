"""Buffers of an update: the section after its weights."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from delta_factory import change, layout
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import WireError
from driftlab.platform.networks.state import NO_BUFFERS, BufferLayout, Buffers
from driftlab.platform.streaming.wire import buffers as buffer_codec
from driftlab.platform.streaming.wire import delta
from driftlab.platform.streaming.wire.delta import VALUES, Change, Format

BUFFER_LAYOUT = BufferLayout(
    ("mean", "count", "var", "flags"), ((5,), (), (2, 3), (3,)), ("float32", "int64", "float32", "bool")
)


SECTION = 4 + 8 + 4  # bytes before the indices


PLAIN_BYTES, PLAIN_DIGEST = 193, "2e5e0fbab30c9cc3"  # of the message of `moving([])` in version 1


def buffers(seed: int = 0) -> Buffers:
    rng = np.random.default_rng(seed)
    arrays = (rng.normal(size=5), rng.integers(2**60), rng.uniform(size=(2, 3)), rng.integers(0, 2, 3))
    typed = zip(arrays, BUFFER_LAYOUT.dtypes, strict=True)
    return Buffers(BUFFER_LAYOUT, tuple(np.asarray(array, dtype) for array, dtype in typed))


def mixed(places: Collection[int], seed: int = 1) -> Buffers:
    """Replace the buffers at these indices by those of a new seed."""
    old, new = buffers().arrays, buffers(seed).arrays
    return Buffers(BUFFER_LAYOUT, tuple(new[n] if n in places else old[n] for n in range(len(old))))


def moving(places: Collection[int], base: int | None = 0) -> Change:
    made = change(301, 60, base=base)
    return replace(made, buffers_before=buffers(), buffers_after=mixed(places))


def bits_of(held: Buffers) -> list[bytes]:
    return [array.tobytes() for array in held.arrays]


def checked(body: bytes) -> bytes:
    return body + delta.CHECKSUM.pack(zlib.crc32(body))


class TestBuffers:
    def test_message_without_changed_buffers_is_version_1(self):
        plain = delta.encode(change(301, 60), layout(301), Format()).data
        assert delta.encode(moving([]), layout(301), Format()).data == plain
        assert plain[4] == 1
        assert (len(plain), hashlib.sha256(plain).hexdigest()[:16]) == (PLAIN_BYTES, PLAIN_DIGEST)

    def test_only_changed_buffers_are_sent_completely(self):
        plain = len(delta.encode(moving([]), layout(301), Format()).data)
        for places, nbytes in (([0], 20), ([1], 8), ([2], 24), ([0, 2], 44), ([0, 1, 2], 52)):
            data = delta.encode(moving(places), layout(301), Format()).data
            assert len(data) == plain + SECTION + 4 * len(places) + nbytes
            assert data[4] == 2

    def test_a_self_contained_message_has_all_buffers_or_no_section(self):
        every = delta.encode(moving([], base=None), layout(301), Format())
        silent = delta.encode(replace(moving([], base=None), buffers_after=NO_BUFFERS), layout(301), Format())
        assert len(every.data) == len(silent.data) + SECTION + 4 * 4 + 20 + 8 + 24 + 3
        for sent, wanted in ((every, buffers()), (silent, buffers(9))):
            zeros = np.zeros(301, dtype=np.float32)
            assert bits_of(delta.apply(sent.data, zeros, layout(301), base=0, buffers=buffers(9)).buffers) == bits_of(
                wanted
            )
        assert bits_of(silent.buffers) == bits_of(buffers())

    @pytest.mark.slow
    @settings(max_examples=60, deadline=None)
    @given(st.sets(st.integers(0, 3)), st.booleans(), st.sampled_from(VALUES), st.integers(1, 9))
    def test_both_ends_hold_the_same_bits(self, places, alone, values, seed):
        made = replace(moving([], base=None if alone else 0), buffers_after=mixed(places, seed))
        sent = delta.encode(made, layout(301), Format(values))
        got = delta.apply(sent.data, made.before, layout(301), base=0, buffers=buffers())
        assert got.vector.tobytes() == sent.vector.tobytes()
        assert bits_of(got.buffers) == bits_of(sent.buffers) == bits_of(made.buffers_after)
        assert [array.dtype.name for array in got.buffers.arrays] == list(BUFFER_LAYOUT.dtypes)
        assert [array.shape for array in got.buffers.arrays] == list(BUFFER_LAYOUT.shapes)

    @pytest.mark.slow
    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_flipped_bits_and_cuts_are_refused(self, data):
        made = moving([0, 1])
        message = delta.encode(made, layout(301), Format("int4")).data
        bits = data.draw(st.sets(st.integers(0, 8 * len(message) - 1), min_size=1, max_size=3))
        bent = bytearray(message)
        for bit in bits:
            bent[bit // 8] ^= 1 << bit % 8
        cut = message[: data.draw(st.integers(0, len(message) - 1))]
        for spoilt in (bytes(bent), cut, message + b"\0"):
            with pytest.raises(WireError):
                delta.apply(spoilt, made.before, layout(301), base=0, buffers=buffers())

    @pytest.mark.slow
    @settings(max_examples=400, deadline=None)
    @given(st.data())
    def test_garbage_with_a_valid_checksum_is_refused_or_decodes_to_buffers(self, data):
        made = moving([0, 2])
        body = bytearray(delta.encode(made, layout(301), Format()).data[: -delta.CHECKSUM.size])
        start = len(body) - SECTION - 8 - 44
        for bit in data.draw(st.sets(st.integers(8 * start, 8 * len(body) - 1), max_size=4)):
            body[bit // 8] ^= 1 << bit % 8
        cut = data.draw(st.integers(0, 3))
        forged = checked(bytes(body[: len(body) - cut]))
        try:
            got = delta.apply(forged, made.before, layout(301), base=0, buffers=buffers()).buffers
        except WireError:
            return
        assert got.layout == BUFFER_LAYOUT
        assert all(np.isfinite(array).all() for array in got.arrays)
        assert [array.shape for array in got.arrays] == list(BUFFER_LAYOUT.shapes)

    @pytest.mark.parametrize(
        ("offset", "forged", "refused"),
        [
            (0, b"\xff\xff\xff\xff", "torn"),  # a section of 4 GiB
            (4, b"\0" * 8, "foreign"),
            (12, b"\xff\xff\xff\xff", "torn"),  # 4 billion buffers
            (12, b"\x05\0\0\0", "torn"),
            (16, b"\x02\0\0\0\x00\0\0\0", "torn"),  # descending indices
            (16, b"\x00\0\0\0\x00\0\0\0", "torn"),
            (16, b"\x00\0\0\0\xff\xff\xff\xff", "torn"),
            (16, b"\x00\0\0\0\x01\0\0\0", "torn"),  # buffers of another size
            (24, np.float32("nan").tobytes(), "torn"),
            (24, np.float32("-inf").tobytes(), "torn"),
        ],
    )
    def test_impossible_section_is_refused(self, offset, forged, refused):
        made = moving([0, 2])
        body = bytearray(delta.encode(made, layout(301), Format()).data[: -delta.CHECKSUM.size])
        start = len(body) - SECTION - 8 - 44 + offset
        body[start : start + len(forged)] = forged
        with pytest.raises(WireError, match=refused):
            delta.apply(checked(bytes(body)), made.before, layout(301), base=0, buffers=buffers())

    def test_section_with_a_repeated_buffer_is_refused(self):
        held = Buffers(BufferLayout(("a", "b"), ((2,), (2,)), ("float32",) * 2), (np.zeros(2, np.float32),) * 2)
        section = bytearray(buffer_codec.encode(held, (0, 1)))
        section[SECTION + 4] = 0
        with pytest.raises(WireError, match="torn"):
            buffer_codec.decode(bytes(section), held, every=False)

    def test_self_contained_message_without_a_buffer_is_refused(self):
        made = moving([0, 2])
        body = bytearray(delta.encode(replace(made, changed=None), layout(301), Format()).data[: -delta.CHECKSUM.size])
        body[7] = 1
        with pytest.raises(WireError, match="torn"):
            delta.apply(checked(bytes(body)), made.before, layout(301), base=0, buffers=buffers())

    def test_a_receiver_without_such_buffers_refuses_them(self):
        made = moving([0])
        data = delta.encode(made, layout(301), Format()).data
        for other in (NO_BUFFERS, Buffers(replace(BUFFER_LAYOUT, names=("a", "b", "c", "d")), buffers().arrays)):
            with pytest.raises(WireError, match="foreign"):
                delta.apply(data, made.before, layout(301), base=0, buffers=other)
        with pytest.raises(WireError, match="replayed"):
            delta.apply(data, made.before, layout(301), base=1, buffers=buffers())

    def test_non_finite_buffers_are_not_sent(self):
        made = moving([0])
        made.buffers_after.arrays[0][2] = np.inf
        with pytest.raises(WireError, match="finite"):
            delta.encode(made, layout(301), Format())
