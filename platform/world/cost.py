"""How long a network works on a machine, and what that costs: pure functions of counted work and a profile."""

from __future__ import annotations

from collections.abc import Iterable

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.world.hardware import Hardware

PASSES = 3  # forward, gradients by inputs, gradients by weights: about the same work each


def inference_s(cost: ModelCost, hardware: Hardware, *, batch: int = 1, share: float = 1.0) -> float:
    """Time one forward pass, with a share of the machine."""
    return sum(_layer_s(layer, hardware, batch) for layer in _layers(cost)) / share


def training_s(cost: ModelCost, hardware: Hardware, *, iterations: int, batch: int) -> float:
    """Time training steps of forward and backward passes."""
    return iterations * PASSES * inference_s(cost, hardware, batch=batch)


def inference_j(cost: ModelCost, hardware: Hardware) -> float:
    """Count what the work of one forward pass draws."""
    energy = hardware.energy
    moved = sum(_bytes(layer, batch=1) for layer in _layers(cost))
    byte_pj = energy.cached * energy.cache_pj_per_byte + (1 - energy.cached) * energy.dram_pj_per_byte
    return (cost.macs * energy.mac_pj + moved * byte_pj) * 1e-12


def memory_bytes(cost: ModelCost) -> int:
    """Count what a network holds while it runs: one copy of its weights works while the other is patched."""
    return 2 * cost.weight_bytes + cost.activation_bytes


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
