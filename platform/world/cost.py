"""Cost model: time, energy and memory of a network on a hardware profile, from counted operations.

A backward pass through a layer costs one forward pass for the gradient of its inputs, and one more for the gradient of
its weights if these are trained. Gradients stop at the first trained layer, so that training a part of a network costs
only that part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from driftlab.errors import RunError
from driftlab.platform.core.records import LayerCost, ModelCost, Passes, TaskCost
from driftlab.platform.world import accesses
from driftlab.platform.world.hardware import Hardware

LINEAR = (
    "Conv",
    "Linear",
    "BatchNorm",
)  # kinds whose input gradient requires no activation (batch norms in evaluation mode)
FLOW_LEVELS = 1 + 1 / 4 + 1 / 16  # pixels of a three-level pyramid, per pixel
FLOW_TAPS = 200  # multiply-accumulates per pixel to fit polynomials to two frames
FLOW_ROUNDS = 5
WARP_MACS, WARP_BYTES = 8, 34  # per pixel: two flows composed by bilinear sampling, then one label map moved along


def inference_s(cost: ModelCost, hardware: Hardware, *, batch: int = 1, share: float = 1.0) -> float:
    """Return the time of one forward pass at a share of the processor."""
    return sum(layer_s(layer, hardware, batch) for layer in _layers(cost)) / share


def task_cost(cost: ModelCost, hardware: Hardware, passes: Passes) -> TaskCost:
    """Return time, energy, and additional memory of counted passes of a network."""
    back, hits = list(_backward_layers(cost, passes.trained, passes.shares)), _hits_of(cost, hardware)
    forth, others = ([(layer, 1.0) for layer in layers] for layers in (_layers(cost), passes.others))
    steps = [
        *_layer_costs(forth, hardware, passes.forward, hits),
        *_layer_costs(back, hardware, passes.backward, hits),
        *_layer_costs(others, hardware, (1,), hits),
    ]
    by_name = {layer.name: layer for layer in _layers(cost)}
    for name, frames, times in passes.beyond:
        steps += _layer_costs([(by_name[name], times)], hardware, [frames], hits)
    seconds, joules = (sum(values) for values in zip(*steps, strict=True)) if steps else (0.0, 0.0)
    return TaskCost({"accelerator": seconds} if seconds else {}, _kept_bytes(cost, passes, back), joules)


def _layer_costs(
    layers: Sequence[tuple[LayerCost, float]], hardware: Hardware, batches: Sequence[float], hits: float
) -> Iterator[tuple[float, float]]:
    """Yield seconds and joules of each layer in each pass; passes of one size are computed once."""
    by_frames = {
        frames: [
            (times * layer_s(one, hardware, frames), times * _layer_j(one, hardware, frames, hits))
            for one, times in layers
        ]
        for frames in set(batches)
    }
    return (layer_cost for frames in batches for layer_cost in by_frames[frames])


def frames_by_layer(cost: ModelCost, passes: Passes) -> dict[str, float]:
    """Return the frames that passes send through each layer; a gradient counts as much as a forward pass."""
    forward, backward = sum(passes.forward), sum(passes.backward)
    found = dict.fromkeys((layer.name for layer in _layers(cost)), 0.0)
    for layer in _layers(cost):
        found[layer.name] += forward
    for layer, times in _backward_layers(cost, passes.trained, passes.shares) if backward else ():
        found[layer.name] += times * backward
    return found


def macs_of(cost: ModelCost, frames: Mapping[str, float]) -> float:
    """Return the multiply-accumulates of layers that processed some frames; runs of one layer count alike."""
    runs = Counter(layer.name for layer in cost.layers)
    return sum(layer.macs * frames.get(layer.name, 0.0) / runs[layer.name] for layer in cost.layers if layer.macs)


def add_costs(needs: Sequence[TaskCost]) -> TaskCost:
    """Return the total cost of consecutive tasks, which use the same memory."""
    seconds = {
        engine: sum(need.seconds.get(engine, 0.0) for need in needs) for need in needs for engine in need.seconds
    }
    memory_bytes = max((need.memory_bytes for need in needs), default=0)
    return TaskCost(seconds, memory_bytes, sum(need.joules for need in needs))


def flow_cost(height: int, width: int, hardware: Hardware) -> TaskCost:
    """Return the cost of one dense optical flow (Farneback, see networks/tasks/flow.py) with its warp."""
    window = max(9, round(height / 8)) | 1
    macs = int(height * width * FLOW_LEVELS * (FLOW_TAPS + FLOW_ROUNDS * (50 + 10 * window)))
    macs += height * width * WARP_MACS
    moved = int(height * width * FLOW_LEVELS * FLOW_ROUNDS * 4 * 12)  # five coefficients read, five written, the flow
    layer = LayerCost("flow", "Flow", macs, 0, moved // 2, moved // 2 + height * width * WARP_BYTES, 0)
    return TaskCost(
        {"accelerator": layer_s(layer, hardware, 1)},
        moved // FLOW_ROUNDS,
        _layer_j(layer, hardware, 1, hardware.energy.cached),
    )


def auxiliary_cost(hardware: Hardware, *, macs: float = 0, moved_bytes: float = 0) -> TaskCost:
    """Return the cost of auxiliary work: coding frames and labels, or patching weights."""
    seconds = max(macs / hardware.macs_per_s, moved_bytes / hardware.bytes_per_s)
    return TaskCost({"cpu": seconds}, 0, computing_j(macs, hardware) + moving_j(moved_bytes, hardware))


def moving_j(moved_bytes: float, hardware: Hardware) -> float:
    """Return the energy of moving bytes through memory."""
    if (memory := hardware.energy.accesses) is not None:
        return accesses.energy_j(moved_bytes, hardware.energy.cached, memory)
    return moved_bytes * _byte_pj(hardware) * 1e-12


def computing_j(macs: float, hardware: Hardware) -> float:
    """Return the energy of multiply-accumulates; none where accesses are counted instead."""
    if hardware.energy.accesses is not None:
        return 0.0
    return macs * hardware.energy.mac_pj * 1e-12


def inference_j(cost: ModelCost, hardware: Hardware) -> float:
    """Return the energy of one forward pass."""
    if (memory := hardware.energy.accesses) is not None:
        listed = replace(cost, layers=tuple(_layers(cost)))
        return accesses.energy_j(accesses.accesses(listed), _hits_of(cost, hardware), memory)
    moved = sum(_bytes(layer, batch=1) for layer in _layers(cost))
    return (cost.macs * hardware.energy.mac_pj + moved * _byte_pj(hardware)) * 1e-12


def memory_bytes(cost: ModelCost) -> int:
    """Return the memory of a running network: one copy of its weights runs while the other is patched."""
    return 2 * cost.weight_bytes + cost.activation_bytes


def _backward_layers(
    cost: ModelCost, trained: Sequence[str] | None, shares: Sequence[float] | None
) -> Iterator[tuple[LayerCost, float]]:
    """Yield the layers of the backward pass, with the number of gradients of each, maybe fractional."""
    layers = list(_layers(cost))
    training = {layer.name for layer in layers if layer.parameters} if trained is None else set(trained)
    if unknown := training - {layer.name for layer in layers}:
        raise RunError(f"Passes name {', '.join(sorted(unknown))}, which the network has not counted as a layer.")
    part = dict(zip(trained or (), shares or (), strict=False))
    first = next((index for index, layer in enumerate(layers) if layer.name in training), len(layers))
    return ((layer, 1 + part.get(layer.name, float(layer.name in training))) for layer in layers[first:])


def _kept_bytes(cost: ModelCost, passes: Passes, back: Sequence[tuple[LayerCost, float]]) -> int:
    """Return the memory of the largest backward pass: stored activations and gradients."""
    if not passes.backward:
        return passes.kept_bytes
    activations = sum(layer.input_bytes for layer, times in back if times > 1 or not layer.kind.startswith(LINEAR))
    gradients = sum(math.ceil((times - 1) * layer.weight_bytes) for layer, times in back)
    return max(passes.backward) * activations + gradients + passes.kept_bytes


def _hits_of(cost: ModelCost, hardware: Hardware) -> float:
    """Return the share of a network's bytes that come from the cache."""
    memory = hardware.energy.accesses
    return hardware.energy.cached if memory is None else accesses.hits_of(cost, memory)


def _layer_j(layer: LayerCost, hardware: Hardware, batch: float, hits: float) -> float:
    if (memory := hardware.energy.accesses) is not None:
        return accesses.energy_j(_bytes(layer, batch), hits, memory) if accesses.is_counted(layer) else 0.0
    return computing_j(batch * layer.macs, hardware) + moving_j(_bytes(layer, batch), hardware)


def _byte_pj(hardware: Hardware) -> float:
    energy = hardware.energy
    return energy.cached * energy.cache_pj_per_byte + (1 - energy.cached) * energy.dram_pj_per_byte


def layer_s(layer: LayerCost, hardware: Hardware, batch: float = 1) -> float:
    """Return the time of a layer on the idle hardware."""
    computing_s = batch * layer.macs / hardware.macs_per_s
    moving_s = _bytes(layer, batch) / hardware.bytes_per_s
    return hardware.overhead_s + max(computing_s, moving_s)


def _bytes(layer: LayerCost, batch: float) -> float:
    """Return the memory traffic of a layer: inputs and outputs per item, weights once per batch."""
    return batch * (layer.input_bytes + layer.output_bytes) + layer.weight_bytes


def _layers(cost: ModelCost) -> Iterable[LayerCost]:
    """Return the layers; a network without a list of layers is one layer."""
    whole = LayerCost("network", "whole", cost.macs, cost.parameters, 0, cost.activation_bytes, cost.weight_bytes)
    return cost.layers or (whole,)
