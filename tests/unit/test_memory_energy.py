"""AdaScale's energy by memory accesses: its equations, and the cache that serves a part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks._energy import MemoryModel, accesses, energy_j, hit_share, paper_share, simulated_share
from driftlab.platform.core.records import LayerCost, ModelCost

LAYERS = (
    LayerCost("a", "Conv2d", 0, 0, 100, 200, 50),
    LayerCost("b", "BatchNorm2d", 0, 0, 200, 200, 8),
    LayerCost("c", "Linear", 0, 0, 200, 10, 40),
)
COST = ModelCost(0, 0, 0, 0, LAYERS)


def test_accesses_are_those_of_layers_that_are_not_fused():
    assert accesses(COST) == 100 + 200 + 50 + 200 + 10 + 40
    assert accesses(COST, batch=3) == 3 * 510 + 90
    twice = [
        replace(
            one, input_bytes=2 * one.input_bytes, output_bytes=2 * one.output_bytes, weight_bytes=2 * one.weight_bytes
        )
        for one in LAYERS
    ]
    assert accesses(replace(COST, layers=tuple(twice))) == 2 * accesses(COST), "numbers of twice as many bits"


def test_energy_is_affine_in_the_share_of_hits():
    memory = MemoryModel()
    slope = 600 * (memory.cache_w / memory.cache_bytes_per_s - memory.memory_w / memory.memory_bytes_per_s)
    none, half, all_ = (energy_j(600, share) for share in (0.0, 0.5, 1.0))
    assert all_ - none == pytest.approx(slope)
    assert half == pytest.approx((none + all_) / 2)
    assert energy_j(1200, 0.3) == pytest.approx(2 * energy_j(600, 0.3))


def test_the_share_of_hits_rises_as_runs_become_faster_and_the_literal_one_falls():
    found = [hit_share(2.0, 1.0, mean_s) for mean_s in (2.5, 2.0, 1.5, 1.0, 0.5)]
    assert found == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert hit_share(2.0, 0.0, 1.2) == pytest.approx(1 - 1.2 / 2.0)
    assert hit_share(1.0, 1.0, 1.0) == 0.0
    assert [paper_share(2.0, mean_s) for mean_s in (1.0, 1.5, 2.0)] == [0.5, 0.75, 0.5]


def test_a_cache_serves_recent_writes_and_weights_only_if_all_fit():
    assert simulated_share(COST, 0) == 0.0
    assert simulated_share(COST, 10_000) == pytest.approx(1 / 6)
    assert simulated_share(COST, 10_000, runs=2) == pytest.approx(5 / 6)
    assert simulated_share(COST, 300, runs=2) == pytest.approx(1 / 6)
