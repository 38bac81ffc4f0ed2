"""The time, energy and memory of one phase of ElasticDNN, recomputed from the shapes of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run

SAMPLES, STEPS, CLASSES, SIDE, FLOAT = 10, 3, 4, 16, 4
MACS_PER_S, BYTES_PER_S, LAUNCH_S = 1.2e9, 2e9, 150e-6  # of a Raspberry Pi 4
MAC_J, BYTE_J = 4.6e-12, (1.25 + 160.0) / 2 * 1e-12
WHOLE, CUT = (16, 32, 32, 32), (8, 16, 16, 16)  # channels of the four convolutions
SIDES = (SIDE // 2, SIDE // 4, SIDE // 4, SIDE // 4)  # of their outputs
SPEC: dict[str, Any] = {
    "name": "one-phase",
    "systems": [
        {
            "name": "elasticdnn",
            "streaming": {"name": "on_device", "trigger": "domain", "period_s": 1, "rate_fps": 10},
            "adaptation": {"name": "elasticdnn", "select": "all", "iterations": STEPS, "guard": False},
            "scaling": {"name": "surrogate", "keep_ratios": [0.5], "epochs": 0, "sources": []},
        }
    ],
    "workloads": [
        {
            "name": "domains:signs/town",
            "duration_s": 4,
            "fps": 10,
            "height": SIDE,
            "width": SIDE,
            "domain_labels": "oracle",
            "params": {"shifts": ["fog"], "severities": [3], "domain_s": 4, "adapt_s": 1, "classes": CLASSES},
        }
    ],
    "fleets": [{"name": "board", "devices": [{"hardware": "raspberry-pi-4"}]}],
    "bounds": False,
    "snapshots": 0,
    "student": {"network": "tiny_classifier", "pretrain_steps": 4},
}
Layer = tuple[int, int, int, int]  # multiply-accumulates, values in, values out, weights


def layers_of(channels: tuple[int, ...]) -> list[Layer]:
    """List the layers of the classifier: four blocks of convolution, batch norm and ReLU, and the head."""
    found, inputs, side = list[Layer](), 3, SIDE
    for outputs, out_side in zip(channels, SIDES, strict=True):
        values, weights = outputs * out_side**2, 9 * inputs * outputs
        found.append((weights * out_side**2, inputs * side**2, values, weights))
        found += [(0, values, values, 2 * outputs), (0, values, values, 0)]
        inputs, side = outputs, out_side
    features = channels[0] + channels[-1]
    return [*found, (features * CLASSES, features, CLASSES, (features + 1) * CLASSES)]


def gates_of(channels: tuple[int, ...]) -> list[Layer]:
    """List the two linear layers of each gate."""
    found, inputs = list[Layer](), 3
    for outputs in channels:
        hidden = max(4, outputs // 16)
        found.append((inputs * hidden, inputs, hidden, (inputs + 1) * hidden))
        found.append((hidden * outputs, hidden, outputs, (hidden + 1) * outputs))
        inputs = outputs
    return found


def stored(channels: tuple[int, ...]) -> int:
    """Return the bytes of a stored network: weights, and mean, variance and counter of each batch norm."""
    weights = sum(weights for *_, weights in layers_of(channels))
    return FLOAT * (weights + 2 * sum(channels)) + 8 * len(channels)


def price(layer: Layer, frames: int, times: int = 1) -> tuple[float, float]:
    """Return seconds and joules of a layer for a batch."""
    macs, read, written, weights = layer
    moved = FLOAT * (frames * (read + written) + weights)
    seconds = LAUNCH_S + max(frames * macs / MACS_PER_S, moved / BYTES_PER_S)
    return times * seconds, times * (frames * macs * MAC_J + moved * BYTE_J)


def moving(moved: int) -> tuple[float, float]:
    """Return seconds and joules of an operation that only moves bytes."""
    return LAUNCH_S + moved / BYTES_PER_S, moved * BYTE_J


def expected() -> tuple[float, float, int]:
    """Return seconds, joules and bytes of the phase."""
    small, filters = layers_of(CUT), sum(9 * a * b for a, b in zip((3, *WHOLE), WHOLE, strict=False))
    master = stored(WHOLE) + FLOAT * sum(weights for *_, weights in gates_of(WHOLE))
    prices = [price(layer, SAMPLES) for layer in layers_of(WHOLE) + gates_of(WHOLE)]  # which channels are relevant
    prices.append(moving(2 * stored(CUT)))  # cut: read and written
    for frames in (1, SAMPLES, SAMPLES, *STEPS * (SAMPLES,)):  # wiring, scores and their gradients, steps
        prices += [price(layer, frames) for layer in small]
    for layer in small[:-1]:  # gradients of inputs, and of weights where there are any
        prices.append(price(layer, SAMPLES, STEPS * (2 if layer[3] else 1)))
    prices.append(price(small[-1], SAMPLES, STEPS))  # the head does not learn
    updated = 2 * stored(CUT) + 2 * FLOAT * filters + stored(WHOLE)  # Eq. 3 and 4: surrogates, knowledge, master
    prices.append(moving(updated))
    seconds, joules = (sum(column) for column in zip(*prices, strict=True))
    activations = SAMPLES * FLOAT * sum(read for _, read, *_ in small[:-1])
    weights = FLOAT * sum(weights for *_, weights in small[:-1])
    copies = 2 * (stored(CUT) + FLOAT * sum(CUT))  # the surrogate as it was cut and before the phase, with gates
    kept = weights + copies  # momentum, copies
    return seconds, joules, activations + weights + kept + master


@pytest.mark.slow
def test_a_phase_costs_its_layers_and_the_update_of_the_master(tmp_path: Path):
    found = open_run(run(SPEC, out=tmp_path / "run").directory)
    (phase,) = (row for row in found.table("updates").to_pylist() if row["iterations"])
    seconds, joules, held = expected()
    (audit,) = (row for row in found.table("audits").to_pylist() if row["operations"])
    seconds += LAUNCH_S + audit["operations"] / MACS_PER_S  # losses and steps, outside the network
    joules += audit["operations"] * MAC_J
    assert phase["buffered"] == SAMPLES and phase["iterations"] == STEPS
    assert phase["isolated_s"] == pytest.approx(seconds, rel=0.001)  # the update of the master is 0.8 % of it
    assert phase["energy_j"] == pytest.approx(joules, rel=0.001)
    assert phase["memory_bytes"] == pytest.approx(held, rel=0.01)
    stages = {row["stage"]: row for row in found.table("stages").to_pylist()}
    assert list(stages) == ["load", "generate", "retrain", "complete", "update"]
    assert stages["retrain"]["memory_bytes"] == phase["memory_bytes"]
    kept = [row["kept"].split() for row in found.table("channels").to_pylist() if row["domain"] == 0]
    assert [len(one) for one in kept] == list(CUT)
