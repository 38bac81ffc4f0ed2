"""Seeds: one number per purpose, the same on every machine and in every version."""

from __future__ import annotations

import itertools

import numpy as np

from driftlab.platform.core.seeding import rng_for, seed_for


def test_seeds_never_change():
    assert seed_for(0, "stream", "streets/running", 3) == 1824294041514746725
    assert seed_for(7) == 4359823973405836615


def test_every_purpose_has_its_own():
    purposes = itertools.product((0, 1), ("a", "b", "ab", ""), (0, 1, 10, "x"))
    seeds = [seed_for(*purpose) for purpose in purposes]
    assert len(set(seeds)) == len(seeds)


def test_generators_of_two_purposes_do_not_follow_each_other():
    first, second = (rng_for(0, purpose).random(1000) for purpose in ("a", "b"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert np.array_equal(rng_for(0, "a").random(1000), first)
