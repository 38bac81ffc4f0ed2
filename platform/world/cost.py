"""How long a network works on a machine, and what that costs: pure functions of counted work and a profile.

Going back through a layer takes as long as going forward for the gradient by its inputs, and as long again for the
gradient by its weights where these learn. Layers before the first one that learns are not gone back through, so that
learning a part of a network costs that part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from driftlab.errors import RunError
from driftlab.platform.core.records import LayerCost, ModelCost, Need, Passes
from driftlab.platform.world.hardware import Hardware

LINEAR = ("Conv", "Linear", "BatchNorm")  # kinds whose gradient by the inputs needs no activation; norms at rest
FLOW_LEVELS = 1 + 1 / 4 + 1 / 16  # pixels of a pyramid of three, per pixel
FLOW_TAPS = 200  # multiply-accumulates per pixel to fit polynomials to two pictures
FLOW_ROUNDS = 5


def inference_s(cost: ModelCost, hardware: Hardware, *, batch: int = 1, share: float = 1.0) -> float:
    """Time one forward pass, with a share of the machine."""
    return sum(_layer_s(layer, hardware, batch) for layer in _layers(cost)) / share


def need_of(cost: ModelCost, hardware: Hardware, passes: Passes) -> Need:
    """Say what counted passes take on a machine: time, joules, and memory beside that of the network at work."""
    back = list(_gone_back(cost, passes.trained))
    steps = [(layer, 1, frames) for frames in passes.forward for layer in _layers(cost)]
    steps += [(layer, times, frames) for frames in passes.backward for layer, times in back]
    seconds = sum(times * _layer_s(layer, hardware, frames) for layer, times, frames in steps)
    joules = sum(times * _layer_j(layer, hardware, frames) for layer, times, frames in steps)
    return Need({"accelerator": seconds} if seconds else {}, _kept_bytes(cost, passes, back), joules)


def added(needs: Sequence[Need]) -> Need:
    """Add needs of works that follow one another; they share their memory."""
    seconds = {
        engine: sum(need.seconds.get(engine, 0.0) for need in needs) for need in needs for engine in need.seconds
    }
    memory_bytes = max((need.memory_bytes for need in needs), default=0)
    return Need(seconds, memory_bytes, sum(need.joules for need in needs))


def flow_need(height: int, width: int, hardware: Hardware) -> Need:
    """Say what one dense optical flow takes (Farneback, as models/flow.py computes it), counted per pixel."""
    window = max(9, round(height / 8)) | 1
    macs = int(height * width * FLOW_LEVELS * (FLOW_TAPS + FLOW_ROUNDS * (50 + 10 * window)))
    moved = int(height * width * FLOW_LEVELS * FLOW_ROUNDS * 4 * 12)  # five coefficients read, five written, the flow
    layer = LayerCost("flow", "Flow", macs, 0, moved // 2, moved // 2, 0)
    return Need({"accelerator": _layer_s(layer, hardware, 1)}, moved // FLOW_ROUNDS, _layer_j(layer, hardware, 1))


def moving_j(moved_bytes: float, hardware: Hardware) -> float:
    """Count what moving bytes through memory draws."""
    return moved_bytes * _byte_pj(hardware) * 1e-12


def computing_j(macs: float, hardware: Hardware) -> float:
    """Count what arithmetic draws."""
    return macs * hardware.energy.mac_pj * 1e-12


def inference_j(cost: ModelCost, hardware: Hardware) -> float:
    """Count what the work of one forward pass draws."""
    moved = sum(_bytes(layer, batch=1) for layer in _layers(cost))
    return (cost.macs * hardware.energy.mac_pj + moved * _byte_pj(hardware)) * 1e-12


def memory_bytes(cost: ModelCost) -> int:
    """Count what a network holds while it runs: one copy of its weights works while the other is patched."""
    return 2 * cost.weight_bytes + cost.activation_bytes


def _gone_back(cost: ModelCost, trained: Sequence[str] | None) -> Iterator[tuple[LayerCost, int]]:
    """List the layers that gradients go back through, and for how many kinds of gradients each."""
    layers = list(_layers(cost))
    learning = {layer.name for layer in layers if layer.parameters} if trained is None else set(trained)
    if unknown := learning - {layer.name for layer in layers}:
        raise RunError(f"Passes name {', '.join(sorted(unknown))}, which the network has not counted as a layer.")
    first = next((which for which, layer in enumerate(layers) if layer.name in learning), len(layers))
    return ((layer, 1 + (layer.name in learning)) for layer in layers[first:])


def _kept_bytes(cost: ModelCost, passes: Passes, back: Sequence[tuple[LayerCost, int]]) -> int:
    """Count what the largest backward pass keeps: inputs of what learns or is not linear, and a gradient per weight."""
    if not passes.backward:
        return passes.kept_bytes
    activations = sum(layer.input_bytes for layer, times in back if times > 1 or not layer.kind.startswith(LINEAR))
    gradients = sum(layer.weight_bytes for layer, times in back if times > 1)
    return max(passes.backward) * activations + gradients + passes.kept_bytes


def _layer_j(layer: LayerCost, hardware: Hardware, batch: int) -> float:
    return computing_j(batch * layer.macs, hardware) + moving_j(_bytes(layer, batch), hardware)


def _byte_pj(hardware: Hardware) -> float:
    energy = hardware.energy
    return energy.cached * energy.cache_pj_per_byte + (1 - energy.cached) * energy.dram_pj_per_byte


def _layer_s(layer: LayerCost, hardware: Hardware, batch: int) -> float:
    computing_s = batch * layer.macs / hardware.macs_per_s
    moving_s = _bytes(layer, batch) / hardware.bytes_per_s
    return hardware.overhead_s + max(computing_s, moving_s)


def _bytes(layer: LayerCost, batch: int) -> int:
    """Count what a layer moves: inputs and outputs for each item, the weights once for the whole batch."""
    return batch * (layer.input_bytes + layer.output_bytes) + layer.weight_bytes


def _layers(cost: ModelCost) -> Iterable[LayerCost]:
    """Take a network whose layers were not listed as one layer."""
    whole = LayerCost("network", "whole", cost.macs, cost.parameters, 0, cost.activation_bytes, cost.weight_bytes)
    return cost.layers or (whole,)
