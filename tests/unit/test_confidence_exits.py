"""Paths that a frame leaves at the first confident exit: numbers, predictions, costs, modules."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.core.registry import Member, parameter_faults
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.early_exit import mean_cost_of, record_exits
from driftlab.platform.networks.paths import PathCatalogue, PathSpace
from driftlab.platform.networks.spaces import find_space
from driftlab.platform.networks.training.training_loop import deterministic, grade
from driftlab.platform.scaling import staged
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.base import Budget, variants_on
from driftlab.platform.scaling.branches import Branches, PathFamily, branch_model, full_depth
from driftlab.platform.scaling.leaving import first_confident
from driftlab.platform.world import hardware

SPACE, THRESHOLDS = "svd,base/resolution,base/dense,base", (0.3, 0.5)
MEMBER = AdaScale(space=SPACE, exits=3, confidence=THRESHOLDS)


@cache
def family() -> PathFamily:
    """Return a family whose weights are random."""
    data = factory.problem()
    with deterministic(0):
        model = build("tiny_staged", factory.CLASSES, seed=0).eval()
        made = branch_model(model, factory.SIZE, find_space(SPACE), 3)
        for head in made.heads:
            head.answer.weight.data *= 8  # confidences from a quarter to one
    val, test = (staged.grade_paths(made, data, split) for split in (data.val, data.test))
    return MEMBER._with_confidence(PathFamily(made, val, test), data)


def test_thresholds_follow_the_paths_whose_numbers_stay():
    space = PathSpace((("a", "base"), ("base",)))
    catalogue = PathCatalogue(space, (0.5, 0.875))
    names = ["a", "base", "a.base", "base.base", "a.base@50", "base.base@50", "a.base@87.5", "base.base@87.5"]
    assert [catalogue.name(number) for number in range(len(catalogue))] == names
    assert catalogue.decode(6) == ((0, 0), 0.875)
    assert len(PathCatalogue(space)) == len(space)


def test_a_frame_takes_the_first_confident_exit_and_else_the_last():
    confidences = np.array([[0.9, 0.2, 0.1], [0.5, 0.9, 0.9], [0.1, 0.6, 0.99], [0.1, 0.2, 0.3]])
    assert first_confident(confidences.copy(), 0.6).tolist() == [0, 1, 1, 2]


@pytest.mark.slow
def test_measured_accuracies_and_costs_are_those_of_the_network_that_runs():
    made, data = family(), factory.problem()
    profile, fixed = MEMBER.profile(made, factory.SIZE), len(made.branched.space)
    assert len(profile) == len(made) == fixed + 2 * (4 + 8)
    for number in (fixed, fixed + 7, len(made) - 1):
        network = MEMBER.select(made, Budget(variant=number))
        with record_exits(network) as exits:
            assert grade(network, data, data.val) == pytest.approx(made.val_accuracies[number])
        leaving = np.bincount(exits, minlength=3) / len(data.val)
        assert leaving.tolist() == made.leaving[number - fixed].tolist()
        whole = count_cost(network, *factory.SIZE)
        assert profile[number].cost == mean_cost_of(whole, leaving[: len(network.heads)])
        path = made.catalogue.decode(number)[0]
        alone = profile[made.branched.space.encode(path)]
        assert profile[number].memory_bytes > alone.memory_bytes, "the earlier exits stay in memory"
    assert made.leaving[:, 0].max() > 0.1, "some frames leave early"
    assert made.leaving[: 4 + 8, 0].mean() > made.leaving[4 + 8 :, 0].mean(), "fewer at a higher threshold"


@pytest.mark.slow
def test_trained_weights_return_to_the_modules_that_paths_share():
    made = family()
    number = len(made) - 1
    network = MEMBER.select(made, Budget(variant=number))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 1.0
    absorbed = MEMBER.absorb(made, network)
    for mine, theirs in zip(
        network.parameters(), MEMBER.select(absorbed, Budget(variant=number)).parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    svd, stays = absorbed.branched.stages[0][0], made.branched.stages[0][0]
    assert all(torch.equal(one, other) for one, other in zip(svd.parameters(), stays.parameters(), strict=True))
    head, before = (next(one.branched.heads[0].parameters()) for one in (absorbed, made))
    assert torch.equal(head, before + 1.0)
    model = build("tiny_staged", factory.CLASSES, seed=0).eval()
    restored = MEMBER.restore(model, MEMBER.store(made), factory.SIZE)
    assert MEMBER.profile(restored, factory.SIZE) == MEMBER.profile(made, factory.SIZE)
    assert Branches().store(replace(made, thresholds=(), leaving=None)).keys() == MEMBER.store(made).keys() - {
        "leaving"
    }


@pytest.mark.slow
def test_methods_without_exits_keep_the_paths_that_all_frames_run():
    made = family()
    variants = variants_on(hardware.find("phone-lo"), MEMBER.profile(made, factory.SIZE))
    assert full_depth(variants) == list(range(6, 14))
    assert Branches(exit=2).select_variant(variants, Budget())[0] == 5
    which, _ = MEMBER.select_variant(variants, Budget(latency_s=max(one.latency_s for one in variants)))
    assert variants[which].accuracy >= max(one.accuracy for one in variants) - MEMBER.tolerance


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"confidence": [0.5, 0.5]}, "its values must differ"),
        ({"confidence": [0.5], "exits": 1}, "needs an earlier exit"),
        ({"confidence": [1.5]}, r"must be each in \(0, 1\]"),
        ({"space": "dwsep,base/base"}, "'exits' is 4, the space has 2 stages"),
    ],
)
def test_invalid_exits_are_refused(given, fault):
    for name in ("adascale", "legodnn"):
        (found,) = parameter_faults(type(Member("scaling", name).make()), given)
        assert re.search(fault, found)
