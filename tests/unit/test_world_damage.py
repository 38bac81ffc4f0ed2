"""Damage: what arrives is never what was sent, it is the same every time, and as often as asked for."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.world.link import MAX_FLIPPED_BITS, Damage, damaged, draw_damage

MESSAGE = bytes(range(256)) * 4


def bits_between(one: bytes, other: bytes) -> int:
    return int(np.unpackbits(np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).sum())


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("message", [MESSAGE, b"a"])
def test_a_cut_message_is_a_beginning_of_it(seed, message):
    torn = Damage("cut", seed).of(message)
    assert len(torn) < len(message)
    assert message.startswith(torn)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("message", [MESSAGE, b"a"])
def test_bits_are_turned_and_nothing_moves(seed, message):
    torn = Damage("bits", seed).of(message)
    assert len(torn) == len(message)
    assert 1 <= bits_between(torn, message) <= MAX_FLIPPED_BITS
    assert torn == Damage("bits", seed).of(message)


def test_damage_differs_from_seed_to_seed():
    assert len({Damage("bits", seed).of(MESSAGE) for seed in range(20)}) == 20
    assert len({len(Damage("cut", seed).of(MESSAGE)) for seed in range(20)}) > 10


def test_nothing_cannot_be_damaged():
    assert Damage("cut", 0).of(b"") == Damage("bits", 0).of(b"") == b""


def test_what_is_not_damaged_arrives():
    assert damaged(MESSAGE, None) is MESSAGE
    assert damaged(MESSAGE, Damage("cut", 1)) == Damage("cut", 1).of(MESSAGE)


def test_as_many_are_damaged_as_asked_for_in_both_ways():
    rng = np.random.default_rng(0)
    drawn = [draw_damage(rng, 0.3) for _ in range(2000)]
    kinds = [damage.kind for damage in drawn if damage]
    assert len(kinds) == pytest.approx(600, abs=80)
    assert kinds.count("cut") == pytest.approx(len(kinds) / 2, abs=60)
    assert all(draw_damage(rng, 1.0) for _ in range(100))


def test_where_nothing_is_ever_damaged_nothing_is_drawn():
    rng = np.random.default_rng(0)
    assert draw_damage(rng, 0.0) is None
    assert rng.random() == np.random.default_rng(0).random()
