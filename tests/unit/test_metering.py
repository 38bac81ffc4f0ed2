"""The lab charges the layers that ran and the operations outside the network."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.core import counted
from driftlab.platform.core.records import ModelCost, Passes, TaskCost
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.taps import counting, tap
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.sim.nodes.guarded_training import adapt_guarded
from driftlab.platform.sim.nodes.metering import AUDITED, CallMeter, OperatorCount, operations_of
from driftlab.platform.world.cost import frames_by_layer, task_cost
from driftlab.platform.world.hardware import find

SIZE, FRAMES, STEPS = 24, 32, 40
PHONE = find("phone-hi")
IMAGES = np.random.default_rng(0).integers(0, 255, (FRAMES, SIZE, SIZE, 3)).astype(np.uint8)


def network(name: str = "tiny_classifier") -> tuple[nn.Module, ModelCost]:
    """Build a network with taps."""
    model = build(name, 5, seed=0).eval()
    cost = count_cost(model, SIZE, SIZE)
    tap(model, cost)
    return model, cost


def batch() -> Batch:
    return Batch(IMAGES, None, np.random.default_rng(0), CLASSIFICATION)


class ManySteps(Tent):
    """Makes many steps per batch, and states all their passes."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        done = [super(ManySteps, self).adapt(model, state, batch, phase) for _ in range(STEPS)]
        passes = [one.passes for one in done if one.passes]
        forward, backward = (sum((getattr(one, way) for one in passes), ()) for way in ("forward", "backward"))
        return replace(done[-1], passes=replace(passes[0], forward=forward, backward=backward))


class HiddenSteps(ManySteps):
    """Makes as many steps, and states one forward pass of one frame."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return replace(super().adapt(model, state, batch, phase), passes=Passes(forward=(1,)))


class Failing(ManySteps):
    """Makes as many steps, and fails after the last one."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        super().adapt(model, state, batch, phase)
        raise ValueError("after all the work")


def price(member: Any, meter: CallMeter) -> tuple[Adapted, TaskCost]:
    model, cost = network()
    done = adapt_guarded(member, model, member.prepare(model), batch(), Phase(on_stream=True), 60, meter, cost)
    assert done.passes is not None
    return done, task_cost(cost, PHONE, done.passes)


@pytest.mark.parametrize("cheat", [HiddenSteps(), Failing()])
def test_steps_that_a_member_does_not_state_are_charged(cheat):
    """Forty steps of Tent, stated as one frame, cost the same as if all were stated (within 5 %)."""
    honest, due = price(ManySteps(), CallMeter(0, {}))
    assert honest.passes is not None
    assert not honest.passes.beyond
    meter = CallMeter(0, {})
    done, charged = price(cheat, meter)
    assert done.passes is not None
    assert done.passes.beyond
    assert charged.joules == pytest.approx(due.joules, rel=0.05)
    assert charged.isolated_s == pytest.approx(due.isolated_s, rel=0.05)
    (row,) = meter.take_rows()
    assert row["beyond_macs"][0] == pytest.approx(row["network_macs"][0] - row["stated_macs"][0], rel=1e-6)
    without = task_cost(network()[1], PHONE, replace(done.passes, beyond=(), others=()))
    assert without.joules < 0.01 * charged.joules  # as it was before anything was counted


@pytest.mark.parametrize("name", ["tiny_classifier", "tiny", "resnet18", "tiny_mobile"])
def test_taps_count_the_passes_of_training(name):
    model, cost = network(name)
    with counting() as counts:
        model(to_input(IMAGES)).square().mean().backward()
    assert counts.frames() == frames_by_layer(cost, Passes((FRAMES,), (FRAMES,)))


def passes_of(use: Callable[[nn.Module, torch.Tensor], Any]) -> float:
    """Return the forward passes of a use of a network, as a share of one over all frames."""
    model, cost = network()
    with counting() as counts, torch.no_grad():
        use(model, to_input(IMAGES))
    macs = {layer.name: layer.macs for layer in cost.layers}
    return sum(macs[name] * frames for name, frames in counts.frames().items()) / (FRAMES * cost.macs)


def test_copies_and_parts_and_other_sizes_count():
    assert passes_of(lambda model, images: copy.deepcopy(model)(images)) == 1
    assert passes_of(lambda model, images: pickle.loads(pickle.dumps(model))(images)) == 1
    assert passes_of(lambda model, images: [model(images[:8]), model(images[8:])]) == 1
    assert passes_of(lambda model, images: model(F.interpolate(images, scale_factor=2))) == pytest.approx(4, rel=0.05)
    assert 0 < passes_of(lambda model, images: next(iter(model.children()))(images)) < 1


def test_passes_outside_of_the_context_do_not_count():
    model, _ = network()
    with counting() as counts:
        pass
    model(to_input(IMAGES))
    assert not counts.forward


def outside(passes: Passes) -> int:
    """Return the operations outside the network."""
    return sum(layer.macs for layer in passes.others)


class Neighbours(Tent):
    """Compares all frames with each other, and runs a layer besides the network."""

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        images = to_input(batch.images)
        with torch.no_grad():
            torch.cdist(images.flatten(1), images.flatten(1)).sort(dim=1)
            F.conv2d(images, torch.ones(8, 3, 3, 3))
        return super().adapt(model, state, batch, phase)


class Hidden(nn.Module):
    """Compares all frames with each other after the network has run in it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.cdist(images.flatten(1), images.flatten(1), compute_mode="donot_use_mm_for_euclid_dist").sort(dim=1)
        outputs: torch.Tensor = self.network(images)
        return outputs


class Wrapping(Tent):
    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        with torch.no_grad():
            Hidden(model)(to_input(batch.images))
        return super().adapt(model, state, batch, phase)


def test_work_in_a_module_around_the_network_counts():
    done, _ = price(Wrapping(), CallMeter(0, {}))
    assert done.passes is not None
    assert outside(done.passes) > FRAMES * FRAMES * SIZE * SIZE * 3
    assert done.passes.beyond  # its pass of the network


def test_audits_find_operations_outside_the_network():
    _, plain = price(Tent(), CallMeter(0, {}))
    meter = CallMeter(0, {})
    done, cost = price(Neighbours(), meter)
    tent, _ = price(Tent(), CallMeter(0, {}))
    assert done.passes is not None
    assert tent.passes is not None
    distances = FRAMES * FRAMES * SIZE * SIZE * 3
    layer = FRAMES * (SIZE - 2) ** 2 * 8 * 27
    sorting = operations_of("sort", [torch.empty(FRAMES, FRAMES)], torch.empty(FRAMES, FRAMES))
    found = outside(done.passes) - outside(tent.passes)
    assert found == pytest.approx(distances + layer + sorting, rel=0.02)
    assert cost.joules - plain.joules == pytest.approx(found * PHONE.energy.mac_pj * 1e-12)


MATRIX = np.random.default_rng(1).normal(size=(12, 12))


@pytest.mark.parametrize(
    ("function", "plain", "operations"),
    [
        (lambda: counted.matmul(MATRIX, MATRIX[:, :5]), lambda: MATRIX @ MATRIX[:, :5], 12 * 5 * 12),
        (lambda: counted.sort(MATRIX), lambda: np.sort(MATRIX), round(144 * np.log2(145))),
        (lambda: counted.argsort(MATRIX, axis=0), lambda: np.argsort(MATRIX, axis=0), round(144 * np.log2(145))),
        (
            lambda: counted.distances(MATRIX, MATRIX[:4]),
            lambda: [[np.linalg.norm(one - other) for other in MATRIX[:4]] for one in MATRIX],
            12 * 4 * 12,
        ),
        (
            lambda: counted.nearest(MATRIX, MATRIX[3:7], k=1)[3:7, 0],
            lambda: np.arange(4),
            12 * 4 * 12 + round(48 * np.log2(49)),
        ),
        (lambda: counted.solve(MATRIX, MATRIX[0]), lambda: np.linalg.solve(MATRIX, MATRIX[0]), 12**3),
    ],
)
def test_numpy_functions_for_members_charge_their_operations(function, plain, operations):
    meter, (_, cost) = CallMeter(0, {}), network()
    for _ in range(3):  # the audited first call, and calls between audits
        with meter.call("adapt", cost, FRAMES) as call:
            found = function()
        assert outside(meter.charge(call, Passes(), learned=True)) == operations
    assert np.allclose(found, plain())
    assert [row["operations"] for row in meter.take_rows()] == [[operations]]


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        (lambda x: x.norm(), 64 * 64),
        (lambda x: x * x, 64 * 64),
        (lambda x: x.T.clone(), 0),
        (lambda x: x.sort(), 64 * 64 * 12),
        (lambda x: torch.linalg.solve(x, x), 64**3),
        (lambda x: torch.linalg.eigvalsh(x), 64**3),
    ],
)
def test_operators_cost_their_results_and_solvers_more(call, operations):
    matrix = torch.eye(64) + 0.01
    with OperatorCount() as found:
        call(matrix)
    assert found.operations == pytest.approx(operations, rel=0.1)


def test_calls_between_audits_are_charged_as_the_audited_ones():
    meter = CallMeter(0, {})
    first, second = price(Neighbours(), meter)[0], price(Neighbours(), meter)[0]
    assert first.passes == second.passes
    assert len(meter.take_rows()) == 1
    _, cost = network()
    for _ in range(20 * AUDITED):
        with meter.call("adapt", cost, FRAMES) as call:
            pass
        meter.charge(call, Passes(), learned=True)
    assert 10 <= len(meter.take_rows()) <= 30  # drawn by the seed


def test_a_restored_meter_goes_on_as_the_first():
    meter = CallMeter(3, {"node": "learner"})
    price(Tent(), meter)
    other = pickle.loads(pickle.dumps(meter))
    for _ in range(3):
        assert price(Neighbours(), meter)[0].passes == price(Neighbours(), other)[0].passes
    counted = ("operations", "network_macs", "number")
    rows = [[{name: row[name] for name in counted} for row in one.take_rows()] for one in (meter, other)]
    assert rows[0] == rows[1]


def test_counting_changes_no_result():
    plain, tapped = build("tiny_classifier", 5, seed=0).eval(), network()[0]
    free = Tent().adapt(plain, Tent().prepare(plain), batch(), Phase(on_stream=True))
    member = Tent()
    state, meter = member.prepare(tapped), CallMeter(0, {})
    counted = adapt_guarded(
        member, tapped, state, batch(), Phase(on_stream=True), 60, meter, count_cost(tapped, SIZE, SIZE)
    )
    assert free.losses == counted.losses
    for mine, theirs in zip(plain.state_dict().values(), tapped.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
