"""Architecture searches: gradients against finite differences, and the order of training steps."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.core.records import ModelCost, Reply
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.branched import MixedNetwork
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.networks.training import training_loop
from driftlab.platform.networks.training.training_loop import (
    DataSplits,
    LabelledFrames,
    TrainingSchedule,
    deterministic,
)
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.scaling.branches import branch_model
from driftlab.platform.scaling.controller import Controller
from driftlab.platform.scaling.darts import Darts, halves, moved, second_order
from driftlab.platform.scaling.enas import Enas
from driftlab.platform.scaling.single import SingleFamily
from driftlab.platform.sim.inline import InlineJob
from driftlab.platform.sim.session import NodeId
from driftlab.platform.sim.setting import AppNetworks, BuiltNetwork, TeacherSpec
from driftlab.platform.world import hardware

IMAGES = factory.some_images(6)
LABELS = torch.arange(6) % factory.CLASSES


@cache
def student() -> torch.nn.Module:
    return build("tiny_staged", factory.CLASSES, seed=0).eval()


def branched(space: str = "tiny"):
    with deterministic(0):
        return branch_model(student(), factory.SIZE, SPACES[space], 2)


def first_of(module: torch.nn.Module) -> torch.Tensor:
    return next(iter(module.state_dict().values()))


def little(count: int = 32) -> DataSplits:
    data = factory.problem()
    return DataSplits(
        data.task, data.classes, data.train.first(count), data.val.first(16), data.test.first(16), data.seed
    )


def test_the_first_order_gradient_of_a_mixture_is_that_of_finite_differences():
    made = branched()
    mixed = MixedNetwork(made).double().eval()
    mixture = [torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True) for _ in made.stages]

    def loss():
        output = mixed(IMAGES.double(), [one.softmax(dim=0) for one in mixture])
        return torch.nn.functional.cross_entropy(output, LABELS)

    found = Darts()._gradients((loss, loss), list(mixed.parameters()), mixture)
    for one, gradient in zip(mixture, found, strict=True):
        for place in range(3):
            sides = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    one[place] += step
                    sides.append(float(loss().detach()))
                    one[place] -= step
            assert float(gradient[place]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-8)


def test_the_second_order_gradient_is_that_of_the_loss_after_the_next_step():
    torch.manual_seed(0)
    weights, mixture = [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2)], [
        torch.randn(3, dtype=torch.float64, requires_grad=True)
    ]  # fmt: skip
    mix, aims = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)

    def loss(which: int):
        made = (mixture[0].softmax(dim=0) @ mix[0]) * weights[0].tanh() + (mixture[0] @ mix[1]).cos() * weights[1]
        return (made - aims[which]).square().mean()

    def judged_after_a_step() -> float:
        steps = torch.autograd.grad(loss(0), weights)
        with moved(weights, steps, -0.3):
            return float(loss(1).detach())

    found = second_order((lambda: loss(0), lambda: loss(1)), weights, mixture, 0.3)[0]
    first = torch.autograd.grad(loss(1), mixture)[0]
    expected = []
    for place in range(3):
        sides = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                mixture[0][place] += step
            sides.append(judged_after_a_step())
            with torch.no_grad():
                mixture[0][place] -= step
        expected.append((sides[0] - sides[1]) / 2e-5)
    assert found.tolist() == pytest.approx(expected, abs=2e-4)
    assert max(abs(first - found)) > 0.01


def test_a_network_that_was_found_is_listed_by_its_operators():
    family = SingleFamily(branched("small").network((2, 0)), 0.8, 0.7)
    found = Darts(space="small", stages=2).profile(family, factory.SIZE)
    for profile, names in ((found, ["svd.dwsep"]), (single_profile(ModelCost(1, 1, 4, 4)), ["tiny_staged"])):
        student = BuiltNetwork("tiny_staged", profile, "", InlineJob(NodeId("builder", ""), "", Reply()))
        listed = AppNetworks(student, None, TeacherSpec(), 0.1, 3).variants(hardware.find("laptop"))
        assert [one.name for one in listed] == names


def test_halves_share_no_frame():
    labelled = LabelledFrames(np.arange(9, dtype=np.uint8), np.arange(9))
    one, other = halves(labelled, np.random.default_rng(0))
    assert sorted([*one.labels, *other.labels]) == list(range(9))
    assert (one.images == one.labels).all() and len(other) == 5


@pytest.mark.slow
def test_darts_runs_the_heaviest_operator_of_each_stage(monkeypatch: pytest.MonkeyPatch):
    member, wanted = Darts(space="tiny", stages=2, architecture_learning_rate=0.1), (1, 0)

    def towards(self, losses, weights, mixture):
        return [torch.where(torch.arange(3) == one, -1.0, 1.0) for one in wanted]

    monkeypatch.setattr(Darts, "_gradients", towards)
    made, before = branched(), MixedNetwork(branched())
    assert member.find_path(made, little(), TrainingSchedule(1, 0.05, 16)) == wanted
    changed = [
        not torch.equal(one, other)
        for one, other in zip(MixedNetwork(made).parameters(), before.parameters(), strict=True)
    ]
    assert all(changed)  # all operators and the exit were trained


@pytest.mark.slow
def test_enas_trains_weights_and_controller_in_turn_and_takes_the_best_path(monkeypatch: pytest.MonkeyPatch):
    made, told, graded = branched(), [], {}
    before = {name: first_of(module).clone() for name, module in made.parts()}

    def grade(network, data, frames):
        graded.setdefault(len(frames), []).append(network.path)
        return float(network.path == (0, 2)) + 0.1 * network.path[0]

    def learn(self, choices, reward):
        told.append((tuple(choices), reward))

    monkeypatch.setattr(training_loop, "grade", grade)
    monkeypatch.setattr(Controller, "learn", learn)
    member = Enas(space="tiny", stages=2, steps=3, candidates=40, batch=8)
    path = member.find_path(made, little(), TrainingSchedule(2, 0.05, 8))
    assert path == (0, 2)
    assert [choices for choices, _ in told] == graded[8] and len(told) == 2 * 3
    assert len(set(graded[16])) == len(graded[16]) <= 9  # each candidate once, on all validation frames
    changed = {name for name, module in made.parts() if not torch.equal(before[name], first_of(module))}
    assert changed >= {"stem", "1.base", "2.base", "exit.2"} and "exit.1" not in changed


def test_a_controller_follows_rewards_and_samples_its_probabilities():
    one, same = (Controller((3, 2), seed, 0.05) for seed in (4, 4))
    for _ in range(10):
        one.learn((0, 1), 1.0)
        one.learn((2, 0), 0.0)
    assert float(one((0, 1))[0].detach()) > float(same((0, 1))[0].detach()) + 0.5
    assert float(one((2, 0))[0].detach()) < float(same((2, 0))[0].detach())
    rng = np.random.default_rng(0)
    drawn = [one.draw(rng) for _ in range(300)]
    odds = {path: float(one(path)[0].detach().exp()) for path in {*drawn}}
    assert sum(odds.values()) == pytest.approx(1.0, abs=0.02)
    assert all(abs(drawn.count(path) / 300 - share) < 0.08 for path, share in odds.items())
    updated = Controller((2,), 0, 0.1)
    for reward in (1.0, 0.0):
        updated.learn((1,), reward)
    assert updated.baseline == pytest.approx(0.95)
