"""Corruption of messages: it changes the message, is reproducible, and has the configured frequency."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.world.link import MAX_FLIPPED_BITS, MessageDamage, damaged, draw_damage

MESSAGE = bytes(range(256)) * 4


def bits_between(one: bytes, other: bytes) -> int:
    return int(np.unpackbits(np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).sum())


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("message", [MESSAGE, b"a"])
def test_cut_message_is_a_prefix(seed, message):
    torn = MessageDamage("cut", seed).of(message)
    assert len(torn) < len(message)
    assert message.startswith(torn)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("message", [MESSAGE, b"a"])
def test_flipped_bits_keep_their_positions(seed, message):
    torn = MessageDamage("bits", seed).of(message)
    assert len(torn) == len(message)
    assert 1 <= bits_between(torn, message) <= MAX_FLIPPED_BITS
    assert torn == MessageDamage("bits", seed).of(message)


def test_empty_message_is_unchanged():
    assert MessageDamage("cut", 0).of(b"") == MessageDamage("bits", 0).of(b"") == b""


def test_undamaged_message_is_unchanged():
    assert damaged(MESSAGE, None) is MESSAGE
    assert damaged(MESSAGE, MessageDamage("cut", 1)) == MessageDamage("cut", 1).of(MESSAGE)


def test_share_of_damaged_messages_is_as_configured():
    rng = np.random.default_rng(0)
    drawn = [draw_damage(rng, 0.3) for _ in range(2000)]
    kinds = [damage.kind for damage in drawn if damage]
    assert len(kinds) == pytest.approx(600, abs=80)
    assert kinds.count("cut") == pytest.approx(len(kinds) / 2, abs=60)
    assert all(draw_damage(rng, 1.0) for _ in range(100))
