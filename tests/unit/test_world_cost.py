"""Time and energy against closed forms, and refusal of impossible hardware."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from driftlab.errors import RequestError, RunError
from driftlab.platform.core.records import LayerCost, ModelCost, Passes, TaskCost
from driftlab.platform.world.cost import add_costs, inference_j, inference_s, task_cost
from driftlab.platform.world.hardware import CROWDHMT, HARDWARE, PHYSICAL, Hardware, find, from_mapping

BOARD = Hardware("board", 1e9, 1e8, 1e-3, 10**9, 2.0, 5.0)
COMPUTING = LayerCost(
    "conv", "Conv2d", macs=8_000_000, parameters=10, input_bytes=100, output_bytes=60, weight_bytes=40
)
MOVING = LayerCost("relu", "ReLU", macs=0, parameters=0, input_bytes=300_000, output_bytes=100_000, weight_bytes=0)
COST = ModelCost(8_000_000, 10, 40, 100_060, (COMPUTING, MOVING))


def test_layer_time_is_overhead_plus_the_maximum_of_compute_and_transfer():
    assert inference_s(COST, BOARD) == pytest.approx((1e-3 + 8e-3) + (1e-3 + 4e-3))


def test_time_is_inversely_proportional_to_the_share():
    assert inference_s(COST, BOARD, share=0.25) == pytest.approx(4 * inference_s(COST, BOARD))


def test_a_batch_repeats_inputs_and_outputs_and_reads_weights_once():
    layer = LayerCost("fc", "Linear", macs=1, parameters=0, input_bytes=10, output_bytes=20, weight_bytes=1000)
    cost = ModelCost(1, 0, 1000, 20, (layer,))
    assert inference_s(cost, BOARD, batch=4) == pytest.approx(1e-3 + (4 * 30 + 1000) / 1e8)


# Three layers that are limited by arithmetic, by memory and by arithmetic; for two frames on BOARD they take
# 1 + 16 ms, 1 + 8.00016 ms and 1 + 2 ms, and move 6 040, 800 016 and 4 072 bytes.
LEARNING = ModelCost(
    9_000_000,
    20,
    80,
    202_024,
    (
        LayerCost("conv", "Conv2d", 8_000_000, 10, input_bytes=1000, output_bytes=2000, weight_bytes=40),
        LayerCost("norm", "BatchNorm2d", 0, 4, input_bytes=200_000, output_bytes=200_000, weight_bytes=16),
        LayerCost("fc", "Linear", 1_000_000, 6, input_bytes=2000, output_bytes=24, weight_bytes=24),
    ),
)
MAC_J, BYTE_J = 4.6e-12, (0.5 * 1.25 + 0.5 * 160) * 1e-12


@pytest.mark.parametrize(
    ("trained", "milliseconds", "macs", "moved", "kept"),
    [
        (None, 3 * 17 + 3 * 9.00016 + 3 * 3, 3 * 18e6, 3 * 810_128, 2 * 203_000 + 80),
        (("norm",), 17 + 3 * 9.00016 + 2 * 3, 16e6 + 2 * 2e6, 6_040 + 3 * 800_016 + 2 * 4_072, 2 * 200_000 + 16),
        (("fc",), 17 + 9.00016 + 3 * 3, 16e6 + 3 * 2e6, 806_056 + 3 * 4_072, 2 * 2_000 + 24),
        (("norm", "fc"), 17 + 3 * 9.00016 + 3 * 3, 16e6 + 3 * 2e6, 6_040 + 3 * 804_088, 2 * 202_000 + 40),
        ((), 17 + 9.00016 + 3, 18e6, 810_128, 0),
    ],
)
def test_backward_pass_ends_at_the_first_trained_layer(trained, milliseconds, macs, moved, kept):
    """One forward pass; one pass back for gradients of inputs, and one more for those of trained weights."""
    cost = task_cost(LEARNING, BOARD, Passes((2,), (2,), trained, kept_bytes=1000))
    assert cost.seconds == {"accelerator": pytest.approx(milliseconds / 1e3, rel=1e-12)}
    assert cost.joules == pytest.approx(macs * MAC_J + moved * BYTE_J, rel=1e-12)
    assert cost.memory_bytes == kept + 1000


def test_nonlinear_layers_store_their_input_in_the_backward_pass():
    relu = LayerCost("relu", "ReLU", 0, 0, input_bytes=500, output_bytes=500, weight_bytes=0)
    layers = (LEARNING.layers[0], LEARNING.layers[1], relu, LEARNING.layers[2])
    cost = replace(LEARNING, layers=layers)
    kept = [
        task_cost(cost, BOARD, Passes((3,), (3,), trained)).memory_bytes
        - task_cost(LEARNING, BOARD, Passes((3,), (3,), trained)).memory_bytes
        for trained in (None, ("norm",), ("fc",))
    ]
    assert kept == [1500, 1500, 0]


def test_partial_training_of_a_layer_costs_a_part_of_its_gradient():
    def cost_of(**how) -> TaskCost:
        return task_cost(LEARNING, BOARD, Passes((2,), (2,), **how))

    still, whole = (cost_of(trained=trained) for trained in (("norm",), ("norm", "fc")))
    part = cost_of(trained=("norm", "fc"), shares=(1.0, 0.25))
    assert part.isolated_s == pytest.approx(0.75 * still.isolated_s + 0.25 * whole.isolated_s)
    assert part.joules == pytest.approx(0.75 * still.joules + 0.25 * whole.joules)
    assert part.memory_bytes == whole.memory_bytes - 18  # three quarters of the gradient, and all of the inputs
    assert cost_of(trained=("norm", "fc"), shares=(1.0, 1.0)) == whole
    with pytest.raises(ValueError, match="a share for each trained module"):
        Passes((2,), (2,), ("norm",), shares=(1.0, 0.5))


def test_no_passes_have_no_cost():
    assert task_cost(LEARNING, BOARD, Passes()) == TaskCost({}, 0, 0.0)
    assert task_cost(LEARNING, BOARD, Passes(kept_bytes=7)) == TaskCost({}, 7, 0.0)


def test_batches_add_time_and_the_largest_sets_the_memory():
    parts = [task_cost(LEARNING, BOARD, Passes((frames,), (frames,))) for frames in (2, 5, 3)]
    whole = task_cost(LEARNING, BOARD, Passes((2, 5, 3), (2, 5, 3)))
    assert whole.isolated_s == pytest.approx(sum(part.isolated_s for part in parts), rel=1e-12)
    assert whole.joules == pytest.approx(sum(part.joules for part in parts), rel=1e-12)
    assert whole.memory_bytes == 5 * 203_000 + 80
    together = add_costs(parts)
    assert (together.isolated_s, together.joules) == pytest.approx((whole.isolated_s, whole.joules), rel=1e-12)
    assert together.memory_bytes == whole.memory_bytes
    assert add_costs([]) == TaskCost()


def test_uncounted_layer_is_refused():
    with pytest.raises(RunError, match="Passes name bn1, which the network has not counted as a layer"):
        task_cost(LEARNING, BOARD, Passes((1,), (1,), ("norm", "bn1")))


@pytest.mark.parametrize("wrong", [{"forward": (0,)}, {"backward": (2, -1)}, {"kept_bytes": -1}])
def test_impossible_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="at least one frame"):
        Passes(**wrong)


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
    for machine in HARDWARE.values():
        assert from_mapping(asdict(machine)) == machine
    with pytest.raises(RequestError, match="Did you mean 'jetson-nx'"):
        find("jetson-nxx")


def test_energy_is_a_preset_or_numbers():
    described = {"name": "board", "macs_per_s": 1e9, "bytes_per_s": 1e8, "overhead_s": 0.001, "memory_bytes": 10**9}
    described |= {"idle_w": 2, "busy_w": 5}
    assert from_mapping({**described, "energy": "crowdhmt"}) == replace(BOARD, energy=CROWDHMT)
    own = {"mac_pj": 1, "cache_pj_per_byte": 2, "dram_pj_per_byte": 3}
    assert from_mapping({**described, "energy": own}).energy.dram_pj_per_byte == 3
    with pytest.raises(RequestError, match=r"Unknown energy 'fysical'. Did you mean 'physical'\?"):
        from_mapping({**described, "energy": "fysical"})


def test_energy_that_is_a_number_is_refused():
    with pytest.raises(RequestError, match=r"'energy' is 5: give a mapping, such as \{key: value\}"):
        from_mapping({"energy": 5})


def test_hardware_mapping_is_parsed_or_refused_with_all_faults():
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


def test_passes_are_tuples_of_the_frames_of_each_batch():
    with pytest.raises(ValueError, match=r"'backward' is 16, must be a tuple .* such as \(16,\)"):
        Passes((16,), 16)
