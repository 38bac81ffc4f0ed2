"""AdaScale's energy by memory accesses: its equations, and the cache that serves a part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.records import LayerCost, ModelCost, Passes
from driftlab.platform.world.accesses import (
    MemoryModel,
    accesses,
    energy_j,
    hit_share,
    hits_of,
    paper_share,
    simulated_runs,
    simulated_share,
)
from driftlab.platform.world.cost import auxiliary_cost, inference_j, task_cost
from driftlab.platform.world.hardware import find, from_mapping

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


def test_accesses_of_the_gpu_cost_its_power_and_hit_no_cache():
    memory = MemoryModel(gpu_share=0.25, gpu_w=10.0, gpu_bytes_per_s=5e9)
    assert energy_j(1000, 0.5, memory) == pytest.approx(0.75 * energy_j(1000, 0.5) + 250 * 10.0 / 5e9)
    alone = MemoryModel(gpu_share=1.0)
    assert energy_j(1000, 0.0, alone) == energy_j(1000, 1.0, alone) == pytest.approx(1000 * 10.0 / 60e9)


def test_hits_follow_from_requests_or_from_access_times():
    first, second = simulated_runs(COST, 10_000, 2)
    assert (first.requests, first.hits, first.moved_bytes, first.hit_bytes) == (6, 1, 600, 200)
    assert (second.hits, second.hit_bytes) == (5, 500)
    memory = MemoryModel(cache_bytes=10_000)
    assert hits_of(COST, memory) == pytest.approx(5 / 6)
    assert hits_of(COST, replace(memory, hit_rate="times")) == pytest.approx(500 / 600), "the share of bytes"
    first_s, second_s = first.time_s(memory), second.time_s(memory)
    assert first_s > second_s > 0
    literal = hits_of(COST, replace(memory, hit_rate="paper"))
    assert literal == pytest.approx((first_s + second_s) / 2 / first_s)
    assert hits_of(COST, replace(memory, hit_rate="paper", runs=1)) == 0.5


def test_a_profile_may_count_accesses_instead_of_operations():
    usual = find("raspberry-pi-4")
    board = from_mapping({"preset": "raspberry-pi-4", "name": "board", "energy": "accesses"})
    assert replace(board, name=usual.name, energy=usual.energy) == usual
    memory = board.energy.accesses
    assert inference_j(COST, board) == pytest.approx(energy_j(600, hits_of(COST, memory), memory))
    more_macs = replace(COST, macs=10**9, layers=tuple(replace(one, macs=10**9) for one in LAYERS))
    assert inference_j(more_macs, board) == inference_j(COST, board) < inference_j(more_macs, usual)
    twice = task_cost(COST, board, Passes(forward=(1, 1)))
    assert twice.joules == pytest.approx(2 * inference_j(COST, board))
    batch = task_cost(COST, board, Passes(forward=(3,))).joules
    assert batch == pytest.approx(energy_j(accesses(COST, batch=3), hits_of(COST, memory), memory))
    assert task_cost(COST, board, Passes(backward=(1,), trained=("c",))).joules == pytest.approx(
        2 * energy_j(250, hits_of(COST, memory), memory)
    )
    moved_j = auxiliary_cost(board, macs=10**9, moved_bytes=1000).joules
    assert moved_j == pytest.approx(energy_j(1000, board.energy.cached, memory))
    on_gpu = from_mapping({"preset": "jetson-nx", "name": "board", "energy": "accesses-gpu"})
    assert inference_j(COST, on_gpu) == pytest.approx(energy_j(600, 0.0, MemoryModel(gpu_share=1.0)))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"preset": "raspberry"}, "Unknown hardware 'raspberry'"),
        ({"preset": "phone-lo", "energy": "acceses"}, "Unknown energy 'acceses'"),
        ({"preset": "phone-lo", "energy": {"accesses": {"gpu_share": 2.0}}}, "energy.accesses.gpu_share"),
    ],
)
def test_faults_of_a_profile_are_named(given, fault):
    with pytest.raises(RequestError, match=fault):
        from_mapping({"name": "board", **given})
