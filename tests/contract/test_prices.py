"""Joules and seconds of cells, recomputed from layers, profiles and the counts of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.world.hardware import find

pytestmark = pytest.mark.slow

NX, V100 = find("jetson-nx"), find("server-v100")
PJ_PER_BYTE = 0.5 * 1.25 + 0.5 * 160  # half of the traffic from the cache, half from DRAM
SIGNS = {"name": "signs/seasons", "fps": 4, "height": 16, "width": 16, "duration_s": 6}
STREET = {"name": "streets/running", "fps": 2, "height": 32, "width": 48, "duration_s": 6}
FRAMES_PER_PHASE = 4  # that the learner of a device samples, at its rate and period below
IN_PHASES = {"name": "on_device", "period_s": 2}
LABEL_S = 0.01
WITHIN = 0.01


@dataclass(frozen=True)
class Layer:
    """One leaf of a network: its multiply-accumulates and bytes for one image."""

    name: str
    macs: int
    moved: int  # inputs and outputs
    weights: int


def layers_of(model: nn.Module, height: int, width: int) -> list[Layer]:
    """Count the leaves of a network as they run, by the formulas of convolutions and linear layers."""
    found: list[Layer] = []

    def count(name: str, module: Any, given: tuple[torch.Tensor, ...], made: torch.Tensor) -> None:
        macs = 0
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            macs = made.numel() * module.in_channels // module.groups * kernel
        elif isinstance(module, nn.Linear):
            macs = made.numel() * module.in_features
        moved = 4 * (sum(each.numel() for each in given) + made.numel())
        found.append(Layer(name, macs, moved, 4 * sum(each.numel() for each in module.parameters())))

    hooks = [
        module.register_forward_hook(lambda *call, name=name: count(name, *call))
        for name, module in model.named_modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, height, width))
    for hook in hooks:
        hook.remove()
    return found


@dataclass
class Bill:
    """Seconds and joules of work on one processor, added up."""

    hardware: Any
    layers: list[Layer]
    seconds: float = 0.0
    joules: float = 0.0

    def layer(self, one: Layer, frames: int, times: float = 1.0) -> None:
        computing_s = frames * one.macs / self.hardware.macs_per_s
        moving_s = (frames * one.moved + one.weights) / self.hardware.bytes_per_s
        self.seconds += times * (self.hardware.overhead_s + max(computing_s, moving_s))
        self.joules += times * (frames * one.macs * 4.6 + (frames * one.moved + one.weights) * PJ_PER_BYTE) * 1e-12

    def forward(self, *batches: int) -> Bill:
        for frames in batches:
            for one in self.layers:
                self.layer(one, frames)
        return self

    def backward(self, *batches: int, trained: Iterable[str]) -> Bill:
        """Add input gradients from the first trained layer on, and the gradients of trained weights."""
        names = set(trained)
        first = next(place for place, one in enumerate(self.layers) if one.name in names)
        for frames in batches:
            for one in self.layers[first:]:
                self.layer(one, frames, 1 + (one.name in names))
        return self

    def labels(self, frames: int, label_s: float) -> Bill:
        self.seconds += frames * label_s
        self.joules += frames * label_s * (self.hardware.busy_w - self.hardware.idle_w)
        return self


def cell(tmp_path: Any, system: Mapping[str, Any], workload: Mapping[str, Any], network: str) -> Any:
    """Run one cell on a Jetson with the default server; return its tables."""
    document = {
        "name": "prices",
        "systems": [dict(system)],
        "workloads": [dict(workload)],
        "fleets": [{"name": "nx", "devices": [{"hardware": "jetson-nx"}]}],
        "bounds": False,
        "snapshots": 0,
        "window_s": 2,
        "student": {"network": network, "pretrain_steps": 2},
        "server": {"label_s": LABEL_S},
    }
    return open_run(run(document, out=tmp_path / "run").directory)


def student(network: str, workload: Mapping[str, Any], classes: int) -> list[Layer]:
    return layers_of(build(network, classes, seed=0), workload["height"], workload["width"])


def with_weights(layers: list[Layer], *, head: bool = True) -> list[str]:
    names = [one.name for one in layers if one.weights]
    return names if head else names[:-1]


def agrees(row: Mapping[str, Any], bill: Bill) -> None:
    assert row["isolated_s"] == pytest.approx(bill.seconds, rel=WITHIN)
    assert row["energy_j"] == pytest.approx(bill.joules, rel=WITHIN)


SIGN_CLASSES, STREET_CLASSES = 8, 8


def test_tent_pays_one_forward_and_one_backward_pass_for_each_batch(tmp_path):
    tables = cell(
        tmp_path, {"name": "tent", "adaptation": {"name": "tent", "stream_batch": 4}}, SIGNS, "tiny_classifier"
    )
    layers = student("tiny_classifier", SIGNS, SIGN_CLASSES)
    model = build("tiny_classifier", SIGN_CLASSES, seed=0)
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    batches = tables.frame("adaptations").to_dict("records")
    assert [(row["frames"], row["iterations"]) for row in batches] == [(4, 1)] * 6
    trains, predicts = Bill(NX, layers).backward(4, trained=norms), Bill(NX, layers).forward(4)
    for row in batches:
        agrees(row, trains)
    (device,) = tables.frame("devices").to_dict("records")
    assert device["training_j"] == pytest.approx(6 * trains.joules, rel=WITHIN)
    assert device["inference_j"] == pytest.approx(6 * predicts.joules, rel=WITHIN)
    assert device["busy_s"] == pytest.approx(6 * (trains.seconds + predicts.seconds), rel=WITHIN)


def test_shot_pays_for_pseudo_labels_and_steps_on_the_device(tmp_path):
    system = {"name": "shot", "streaming": IN_PHASES, "adaptation": {"name": "shot", "iterations": 3, "batch": 4}}
    tables = cell(tmp_path, system, SIGNS, "tiny_classifier")
    layers = student("tiny_classifier", SIGNS, SIGN_CLASSES)
    updates = tables.frame("updates").to_dict("records")
    assert [row["iterations"] for row in updates] == [3, 3] and updates[0]["buffered"] == 4
    for number, row in enumerate(updates):
        bill = Bill(NX, layers)
        if not number:
            bill.forward(1)  # to find the head
        whole, rest = divmod(int(row["buffered"]), 4)
        bill.forward(*whole * [4], *[rest] * bool(rest))  # all frames, for pseudo-labels
        steps = 3 * [4]
        agrees(row, bill.forward(*steps).backward(*steps, trained=with_weights(layers, head=False)))
    (device,) = tables.frame("devices").to_dict("records")
    assert device["training_j"] == pytest.approx(sum(row["energy_j"] for row in updates), rel=WITHIN)


def test_ams_pays_for_labels_and_steps_on_its_gpu_and_for_codec_and_patch_on_the_device(tmp_path):
    system = {
        "name": "ams",
        "streaming": {"name": "ams", "interval_s": 2},
        "adaptation": {"name": "distill", "iterations": 3, "batch": 4},
    }
    tables = cell(tmp_path, system, STREET, "half")
    layers = student("half", STREET, STREET_CLASSES)
    updates = tables.frame("updates").to_dict("records")
    assert len(updates) == 2
    for row in updates:
        steps = int(row["iterations"]) * [4]
        bill = Bill(V100, layers).labels(int(row["samples"]), LABEL_S)
        agrees(row, bill.forward(*steps).backward(*steps, trained=with_weights(layers)))
        assert row["train_end_s"] - row["train_start_s"] == pytest.approx(bill.seconds - row["samples"] * LABEL_S)
    messages = tables.frame("transfers").to_dict("records")
    samples = [row for row in messages if row["kind"] == "samples"]
    macs = [row["samples"] * STREET["height"] * STREET["width"] * 6300 for row in samples]  # a pixel of h264
    for number, row in enumerate(samples):
        assert row["queued_s"] - 2 * (number + 1) == pytest.approx(macs[number] / NX.macs_per_s, rel=WITHIN)
    (device,) = tables.frame("devices").to_dict("records")
    assert device["coding_j"] == pytest.approx(sum(macs) * 4.6e-12, rel=WITHIN)
    moved = sum(2 * stored_bytes(build("half", STREET_CLASSES, seed=0)) + row["bytes"] for row in updates)
    assert device["patching_j"] == pytest.approx(moved * PJ_PER_BYTE * 1e-12, rel=WITHIN)
    assert device["inference_j"] == pytest.approx(12 * Bill(NX, layers).forward(1).joules, rel=WITHIN)


def test_ekya_pays_for_trials_as_for_training(tmp_path):
    system = {
        "name": "ekya",
        "streaming": {**IN_PHASES, "iterations": 12},
        "adaptation": {"name": "distill", "batch": 4},
        "scheduling": "ekya",
    }
    tables = cell(tmp_path, system, SIGNS, "tiny_classifier")
    layers = student("tiny_classifier", SIGNS, SIGN_CLASSES)
    updates = tables.frame("updates").to_dict("records")
    assert [row["iterations"] for row in updates] == [12, 12]
    slower = V100.macs_per_s / NX.macs_per_s  # of the teacher for which the oracle stands
    for row in updates:
        held_out, trial, steps = [FRAMES_PER_PHASE // 2], 12 * 5 // 30 * [4], int(row["iterations"]) * [4]
        bill = Bill(NX, layers).labels(int(row["samples"]), LABEL_S * slower)
        bill.forward(*held_out)  # the network before the trial
        for training in (trial, steps):
            bill.forward(*training).backward(*training, trained=with_weights(layers))
        agrees(row, bill.forward(*held_out))
        labels_s = row["samples"] * LABEL_S * slower  # much longer than the rest, which is compared by itself
        assert row["isolated_s"] - labels_s == pytest.approx(bill.seconds - labels_s, rel=WITHIN)


def test_elasticdnn_pays_for_the_pass_through_its_master_for_cut_and_for_feedback(tmp_path, monkeypatch):
    learners, begin = [], LearnerNode.__init__
    monkeypatch.setattr(LearnerNode, "__init__", lambda self, *args: learners.append(self) or begin(self, *args))
    system = {
        "name": "elasticdnn",
        "streaming": IN_PHASES,
        "adaptation": {"name": "elasticdnn", "iterations": 2, "select": "all"},
        "scaling": {"name": "surrogate", "keep_ratios": [0.5], "stages": [0.5], "epochs": 1, "knowledge": "mix_fixed"},
    }
    tables = cell(tmp_path, system, SIGNS, "tiny_classifier")
    (learner,) = learners
    size = SIGNS["height"], SIGNS["width"]
    surrogate, master = learner._model, learner._family
    layers, gated = layers_of(surrogate, *size), layers_of(master.gated, *size)
    cut_bytes = stored_bytes(surrogate, but=".gate")
    weights = [dict(master.network.named_modules())[name].weight.flatten(1).shape for name in master.links]
    known_bytes, mixing_bytes = (4 * sum(sizes) for sizes in ([n * k for n, k in weights], [n * n for n, _ in weights]))
    mixed_macs = sum(2 * n * n * k for n, k in weights)  # Eq. 3 and 4
    read_bytes = 2 * cut_bytes + known_bytes + 2 * mixing_bytes
    cutting = Layer("cut", 0, 2 * cut_bytes, 0)
    feedback = Layer("feedback", mixed_macs, read_bytes + known_bytes + stored_bytes(master.network), 0)
    updates = tables.frame("updates").to_dict("records")
    assert len(updates) == 2
    for row in updates:
        frames = int(row["buffered"])
        bill = Bill(NX, layers)
        for one in gated:
            bill.layer(one, frames)
        for one in (cutting, feedback):
            bill.layer(one, 1)
        bill.forward(frames, frames, 1)  # scores of all filters, and the wiring of the network
        bill.forward(frames, frames)  # the quality of the predictions before and after
        bill.forward(frames, frames).backward(frames, frames, trained=with_weights(layers, head=False))
        agrees(row, bill)


def stored_bytes(model: nn.Module, but: str = " ") -> int:
    state = model.state_dict()
    return sum(value.numel() * value.itemsize for name, value in state.items() if not name.endswith(but))
