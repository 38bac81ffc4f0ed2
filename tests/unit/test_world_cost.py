"""Time and energy against closed forms; machines that make no sense are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.world.cost import inference_j, inference_s, training_s
from driftlab.platform.world.hardware import CROWDHMT, HARDWARE, PHYSICAL, Hardware, find, from_mapping

BOARD = Hardware("board", 1e9, 1e8, 1e-3, 10**9, 2.0, 5.0)
COMPUTING = LayerCost(
    "conv", "Conv2d", macs=8_000_000, parameters=10, input_bytes=100, output_bytes=60, weight_bytes=40
)
MOVING = LayerCost("relu", "ReLU", macs=0, parameters=0, input_bytes=300_000, output_bytes=100_000, weight_bytes=0)
COST = ModelCost(8_000_000, 10, 40, 100_060, (COMPUTING, MOVING))


def test_each_layer_takes_its_overhead_and_the_slower_of_computing_and_moving():
    assert inference_s(COST, BOARD) == pytest.approx((1e-3 + 8e-3) + (1e-3 + 4e-3))


def test_a_share_of_the_machine_stretches_time():
    assert inference_s(COST, BOARD, share=0.25) == pytest.approx(4 * inference_s(COST, BOARD))


def test_a_batch_repeats_inputs_and_outputs_and_reads_weights_once():
    layer = LayerCost("fc", "Linear", macs=1, parameters=0, input_bytes=10, output_bytes=20, weight_bytes=1000)
    cost = ModelCost(1, 0, 1000, 20, (layer,))
    assert inference_s(cost, BOARD, batch=4) == pytest.approx(1e-3 + (4 * 30 + 1000) / 1e8)


def test_a_training_step_is_three_forward_passes_over_the_batch():
    assert training_s(COST, BOARD, iterations=7, batch=2) == pytest.approx(7 * 3 * inference_s(COST, BOARD, batch=2))


def test_a_network_without_listed_layers_is_one_layer():
    assert inference_s(ModelCost(5_000_000, 1, 4, 6), BOARD) == pytest.approx(1e-3 + 5e-3)


def test_energy_presets_follow_their_formula():
    moved = 100 + 60 + 40 + 400_000
    physical = Hardware("p", 1, 1, 0, 1, 0, 0, PHYSICAL)
    crowdhmt = Hardware("c", 1, 1, 0, 1, 0, 0, CROWDHMT)
    assert inference_j(COST, physical) == pytest.approx((8e6 * 4.6 + moved * (0.5 * 1.25 + 0.5 * 160)) * 1e-12)
    assert inference_j(COST, crowdhmt) == pytest.approx((8e6 * 5000 + moved * (0.5 * 0.05 + 0.5 * 100)) * 1e-12)
    cached = Hardware("m", 1, 1, 0, 1, 0, 0, replace(PHYSICAL, cached=0.9))
    assert inference_j(COST, cached) == pytest.approx((8e6 * 4.6 + moved * (0.9 * 1.25 + 0.1 * 160)) * 1e-12)


def test_presets_are_complete_and_ordered_from_phone_to_server():
    servers = ["server-v100", "server-h200"]
    slow_to_fast = ["raspberry-pi-4", "phone-lo", "phone-hi", "laptop", "jetson-nx", "jetson-agx-orin", *servers]
    assert sorted(HARDWARE) == sorted(slow_to_fast)
    assert all(machine.name == name for name, machine in HARDWARE.items())
    times = [inference_s(ModelCost(10**9, 1, 1, 1), find(name)) for name in slow_to_fast]

    assert times == sorted(times, reverse=True)
    with pytest.raises(RequestError, match="Did you mean 'jetson-nx'"):
        find("jetson-nxx")


def test_what_work_draws_has_a_name_or_numbers():
    described = {"name": "board", "macs_per_s": 1e9, "bytes_per_s": 1e8, "overhead_s": 0.001, "memory_bytes": 10**9}
    described |= {"idle_w": 2, "busy_w": 5}
    assert from_mapping({**described, "energy": "crowdhmt"}) == replace(BOARD, energy=CROWDHMT)
    own = {"mac_pj": 1, "cache_pj_per_byte": 2, "dram_pj_per_byte": 3}
    assert from_mapping({**described, "energy": own}).energy.dram_pj_per_byte == 3
    with pytest.raises(RequestError, match=r"Unknown energy 'fysical'. Did you mean 'physical'\?"):
        from_mapping({**described, "energy": "fysical"})


def test_what_work_draws_is_no_number():
    with pytest.raises(RequestError, match=r"'energy' is 5: give a mapping, such as \{key: value\}"):
        from_mapping({"energy": 5})


def test_a_described_machine_is_read_or_refused_with_all_faults():
    described = {"name": "board", "macs_per_s": "1e9", "bytes_per_s": 1e8, "overhead_s": 0.001, "memory_bytes": 10**9}
    assert from_mapping({**described, "idle_w": 2, "busy_w": 5}) == BOARD
    with pytest.raises(RequestError) as refused:
        from_mapping({**described, "macs_per_s": 0, "memory_bytes": 1.5, "idle": 3, "busy_w": -1})
    for part in (
        "'board'",
        "macs_per_s",
        "memory_bytes",
        "1.5",
        "unknown field 'idle'",
        "'idle_w' is missing",
        "busy_w",
    ):
        assert part in str(refused.value)
    with pytest.raises(RequestError, match="'memory_bytes' is 0"):
        from_mapping({**described, "memory_bytes": 0, "idle_w": 2, "busy_w": 5})
    with pytest.raises(RequestError, match="busy_w"):
        from_mapping({**described, "idle_w": 6, "busy_w": 5})
