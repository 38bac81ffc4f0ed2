"""The selection of a network without a scheduler's choice: within the budget, on the share."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.records import Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.scaling.base import Budget

SMALL = Variant("small", 0.6, 10, 0.01, energy_j=0.1)
MIDDLE = Variant("middle", 0.7, 20, 0.02, energy_j=0.2)
LARGE = Variant("large", 0.8, 40, 0.04, energy_j=0.4)
ALL = (SMALL, MIDDLE, LARGE)


def choice(variants: tuple[Variant, ...] = ALL, **budget: Any) -> int:
    which, state = Member("scaling", "fixed").make().select_variant(variants, Budget(**budget), state="handed on")
    assert state == "handed on"
    return which


@pytest.mark.parametrize(
    "budget",
    [{"memory_bytes": 9}, {"latency_s": 0.001}, {"accuracy": 0.9}, {"share": 0.0, "latency_s": 1.0},
     {"accuracy": 0.75, "memory_bytes": 20}],
)  # fmt: skip
def test_where_none_keeps_to_the_limits_it_is_the_fastest(budget: dict[str, Any]):
    for order in itertools.permutations(ALL):
        assert order[choice(order, **budget)] == SMALL


def test_choose_returns_the_variant_of_the_budget_without_limits():
    assert choice(variant=1, memory_bytes=1, latency_s=1e-6, accuracy=1.0, share=0.0) == 1
    with pytest.raises(RequestError, match="variant is 3"):
        choice(variant=3)


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_unmeasured_networks_are_within_limits_and_least_accurate(nothing: float | None):
    unknown = Variant("unknown", nothing, 10, 0.01, energy_j=nothing)
    assert choice((unknown, SMALL), energy_j=0.1) == 1
    assert choice((unknown, SMALL), energy_j=0.05, accuracy=0.5) == 0
    assert choice((unknown, unknown)) == 0


def test_among_equals_it_is_the_first():
    assert choice((SMALL, SMALL)) == 0
    assert choice((LARGE, LARGE), latency_s=0.001) == 0


@pytest.mark.parametrize("limit", ["memory_bytes", "latency_s", "energy_j", "share"])
def test_a_looser_limit_never_chooses_a_less_accurate_network_that_fits(limit: str):
    draw = random.Random(0)
    for _ in range(200):
        networks = tuple(
            Variant(str(i), draw.random(), draw.randrange(100), draw.random(), draw.random()) for i in range(5)
        )
        usual = {"memory_bytes": draw.randrange(100), "latency_s": 4 * draw.random(), "energy_j": draw.random()}
        limits = sorted(draw.sample(range(1, 101), 2))
        tight, loose = (
            {"share": 0.5, **usual, limit: each if limit == "memory_bytes" else each / 100} for each in limits
        )
        fits = any(
            one.memory_bytes <= tight["memory_bytes"]
            and one.latency_s <= tight["latency_s"] * tight["share"]
            and one.energy_j <= tight["energy_j"]
            for one in networks
        )
        first, second = (networks[choice(networks, **each)].accuracy for each in (tight, loose))
        assert not fits or first <= second


def test_no_network_exceeds_the_memory_while_another_fits():
    """If none is in time, the fastest that fits in memory; if none fits, the smallest."""
    networks = (Variant("slow", 0.7, 20, 0.04), Variant("small", 0.6, 10, 0.05), Variant("quick", 0.5, 30, 0.01))
    for room, chosen in ((30, 2), (20, 0), (10, 1), (0, 1)):
        assert choice(networks, memory_bytes=room, latency_s=0.001) == chosen
