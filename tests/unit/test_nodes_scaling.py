"""The life of a family: built once and stored, run, trained on, and switched at both ends."""

from __future__ import annotations

import copy
import dataclasses
import logging
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from state_factory import CLASSES, HEIGHT, WIDTH, frames

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, obtain_family
from driftlab.platform.scaling.base import variants_on
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.nodes.networks import Builder
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan
from driftlab.platform.world import hardware

NETWORK = Recipe("half", height=HEIGHT, width=WIDTH, steps=2)
NESTED = Member(
    "scaling",
    "nested",
    (("keep_ratios", [0.75, 0.5]), ("accuracy_loss", 1.0), ("prune_epochs", 0), ("grow_epochs", 1), ("ranked_on", 16)),
)
RECIPE = FamilyRecipe(NETWORK, NESTED)


@cache
def built() -> Reply:
    return Builder().build(RECIPE)


def student(adaptation: str) -> StudentSpec:
    return StudentSpec("half", CLASSES, HEIGHT, WIDTH, Member("adaptation", adaptation), NESTED, seed=0)


def nodes() -> tuple[AppNode, LearnerNode]:
    machine = hardware.find("laptop")
    cost = built().facts.profile[-1].cost
    application = AppNode(AppNodeConfig("d", "app", student("frozen"), machine, cost), built().payload)
    return application, LearnerNode(student("distill"), built().payload)


def update_of(learner: LearnerNode, start_s: float) -> bytes:
    seen = frames(start_s)
    learner.store(seen, seen.labels)
    payload: bytes = learner.train(DownlinkPlan(None, Phase(3))).payload
    return payload


def same(application: AppNode, learner: LearnerNode) -> bool:
    return application._versions[-1].state.vector.tobytes() == learner._vector.tobytes()


@pytest.mark.slow
def test_a_builder_returns_the_cost_of_each_network_and_plain_arrays():
    profile = built().facts.profile
    assert [one.name for one in profile] == ["1/2", "2/2"]
    assert profile[0].memory_bytes < profile[1].memory_bytes and profile[0].cost.macs < profile[1].cost.macs
    assert all(isinstance(array, np.ndarray) for array in built().payload.values())


@pytest.mark.slow
def test_nested_networks_share_kernels_only_and_independent_ones_have_equally_many():
    def kernels(member: Member) -> tuple[int, ...]:
        return tuple(one.cost.kernel_bytes for one in Builder().build(FamilyRecipe(NETWORK, member)).facts.profile)

    profile = built().facts.profile
    fewer, more = (one.cost.kernel_bytes for one in profile)
    assert profile[1].memory_bytes - profile[0].memory_bytes == more - fewer > 0
    assert kernels(Member("scaling", "independent", (("keep_ratios", [0.75, 0.5]), ("epochs", 0)))) == (fewer, more)
    tensors = state_of(build("half", CLASSES, seed=0)).values()
    assert kernels(Member("scaling", "fixed")) == (sum(tensor.nbytes for tensor in tensors if tensor.ndim > 1),)
    assert [one.kernel_bytes for one in variants_on(hardware.find("laptop"), profile)] == [fewer, more]


@pytest.mark.slow
def test_a_family_is_built_once(monkeypatch, caplog):
    built()
    monkeypatch.setattr(
        "driftlab.platform.networks.training.pretrain.build_family", lambda *_: pytest.fail("built again")
    )
    with caplog.at_level(logging.INFO):
        again = obtain_family(RECIPE)
    assert {name: array.tobytes() for name, array in again.items()} == {
        name: array.tobytes() for name, array in built().payload.items()
    }
    assert not caplog.records


def test_everything_that_a_family_depends_on_decides_where_it_is_kept(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    member = Member("scaling", f"{mine}:Mine")
    others = [
        FamilyRecipe(dataclasses.replace(NETWORK, steps=3), NESTED),
        FamilyRecipe(NETWORK, Member("scaling", "nested")),
        FamilyRecipe(NETWORK, Member("scaling", "usnet")),
        FamilyRecipe(NETWORK, NESTED, version=RECIPE.version + 1),
        FamilyRecipe(NETWORK, member),
    ]
    keys = {recipe.key() for recipe in [RECIPE, *others]}
    assert len(keys) == 6
    assert FamilyRecipe(NETWORK, Member("scaling", "nested", (("ranking", "trr"),))).key() == others[1].key()
    mine.write_text(OWN + "\n# another version\n")
    assert FamilyRecipe(NETWORK, member).key() not in keys


OWN = """
from dataclasses import dataclass
from driftlab.platform.scaling.fixed import Fixed

@dataclass(frozen=True)
class Mine(Fixed):
    pass
"""


@pytest.mark.slow
def test_an_application_runs_the_network_that_it_was_switched_to():
    application, _ = nodes()
    costs = [one.cost for one in built().facts.profile]
    for number, which in enumerate((0, 1, 0)):
        application.switch(which)
        assert application._cost == costs[which]
        facts: Any = application.run_stream(
            frames(10.0 * number), None, 10.0 * number + 5, ((10.0 * number, 1.0),)
        ).facts
        assert facts.processed == 3
    with pytest.raises(RequestError, match="networks 0 to 1"):
        application.switch(2)


@pytest.mark.slow
def test_both_ends_switch_and_agree_again():
    application, learner = nodes()
    assert same(application, learner)
    assert application.apply(update_of(learner, 0.0), 3.0).facts.accepted
    assert same(application, learner)
    late = update_of(learner, 10.0)
    application.switch(0)
    learner.switch(0)
    refused = application.apply(late, 13.0).facts
    assert not refused.accepted and "layout" in refused.reason
    assert application.apply(update_of(learner, 20.0), 23.0).facts.accepted  # it builds on nothing
    assert same(application, learner)
    assert application.apply(update_of(learner, 30.0), 33.0).facts.accepted
    assert same(application, learner)


@pytest.mark.slow
def test_trained_weights_survive_a_switch_to_another_network():
    application, learner = nodes()
    application.switch(1)
    learner.switch(1)
    application.apply(update_of(learner, 0.0), 3.0)
    learned = application._versions[-1].state.vector
    application.switch(0)
    application.switch(1)
    assert application._versions[-1].state.vector.tobytes() == learned.tobytes()


@pytest.mark.slow
def test_networks_with_equally_many_weights_have_separate_costs():
    application, _ = nodes()
    fine = application._model
    coarse = copy.deepcopy(fine)
    first = next(layer for layer in coarse.modules() if isinstance(layer, torch.nn.Conv2d))
    first.stride = (2 * first.stride[0], 2 * first.stride[1])
    twins = {0: coarse, 1: fine}
    application._scaling = SimpleNamespace(
        select=lambda family, budget: twins[budget.variant], absorb=lambda family, model: family
    )
    costs = []
    for variant in (0, 1, 0):
        application.switch(variant)
        costs.append(application._cost)
    assert costs[0] == count_cost(coarse, HEIGHT, WIDTH) == costs[2]
    assert costs[1] == count_cost(fine, HEIGHT, WIDTH)
    assert costs[0].parameters == costs[1].parameters and costs[0].macs < costs[1].macs
