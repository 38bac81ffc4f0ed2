"""Spaces: every value has a position, every position a value, and ends are as likely as the rest."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.core.space import OneOf, Range, Space

DOMAINS = (
    OneOf(("x", "y", "z")),
    OneOf(([1.0, 0.5], [1.0]), ordered=True),
    Range(0.0, 2.0),
    Range(1e-4, 1e-1, log=True),
    Range(-2, 5, integer=True),
    Range(1, 64, log=True, integer=True),
)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_value_is_restored_from_its_position(domain):
    for at in np.linspace(0, 1, 41):
        value = domain.at(float(at))
        assert 0 <= domain.position(value) <= 1
        again = domain.at(domain.position(value))
        assert again == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("domain", DOMAINS)
def test_grid_has_both_ends_without_duplicates(domain):
    grid = domain.grid()
    assert (grid[0], grid[-1]) == pytest.approx((domain.at(0.0), domain.at(1.0))) or isinstance(domain, OneOf)
    assert len({repr(value) for value in grid}) == len(grid)
    assert all(0 <= domain.position(value) <= 1 for value in grid)


@pytest.mark.parametrize("value", [2.5, -0.1, True, "1", None])
def test_values_outside_a_domain_have_no_position(value):
    assert Space({"a": Range(0.0, 2.0)}).positions({"a": value}) is None


def test_a_space_counts_and_lists_its_settings():
    space = Space({"a": OneOf((1, 2)), "b": Range(0, 2, integer=True)})
    assert space.count == len(list(space.grid())) == 6
    assert Space({"a": Range(0.0, 1.0)}).count is None
    assert space.positions({"a": 1}) is None
