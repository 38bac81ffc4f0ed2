"""Building nested networks: seeds, goals, groups of one channel, and the causal variant."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import scaling_factory as factory
import torch
from nested_factory import EXAMPLE, MEMBER, SIZE, RecordingBuilder, networks, problem
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.pruning.family import extract
from driftlab.platform.networks.pruning.surgery import cut, groups
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, _family_origin
from driftlab.platform.networks.training.training_loop import TrainingSchedule, grade, train_best
from driftlab.platform.scaling.growing import PruningContext, fixed_statistics
from driftlab.platform.scaling.nested import Nested


@pytest.mark.slow
def test_causal_families_store_zeros_for_reads_of_grown_filters():
    descendants = RecordingBuilder("plain", dataclasses.replace(MEMBER, initial="footprint", causal=True)).descendants
    for small, large in itertools.pairwise(descendants):
        for name in ("deep.0.0.weight", "deep.1.0.weight", "deep.2.0.weight"):
            outputs, inputs, *_ = small.get_parameter(name).shape
            assert not large.get_parameter(name)[:outputs, inputs:].any()
            assert large.get_parameter(name)[outputs:, inputs:].any()


def test_fixed_statistics_normalises_frozen_channels_by_stored_statistics():
    norm, images = nn.BatchNorm2d(3), torch.randn(6, 3, 4, 4) * 3 + 1
    norm.running_mean.uniform_(-1, 1)
    network, ever = nn.Sequential(norm), copy.deepcopy(norm).eval()
    batch, before = copy.deepcopy(norm).train(), norm.running_mean.clone()
    old = torch.tensor([True, False, True])
    with fixed_statistics(network, {"0.running_mean": old, "0.running_var": old}):
        learning, resting = network.train()(images), network.eval()(images)
    assert torch.equal(learning[:, old], ever(images)[:, old])
    assert torch.equal(resting[:, old], ever(images)[:, old])
    assert torch.equal(learning[:, ~old], batch(images)[:, ~old])
    assert torch.equal(norm.running_mean[old], before[old]) and torch.equal(norm.running_var[old], torch.ones(2))
    assert torch.equal(norm.running_mean[~old], batch.running_mean[~old])
    assert torch.equal(network.train()(images), batch(images))


@pytest.mark.parametrize("smaller", [{"pool": 2}, {"stride": 2}])
def test_cutting_one_filter_saves_its_reads_and_the_reads_of_it(smaller: dict[str, int]):
    """All sizes differ, so that an exchanged term changes the result."""
    before, width, after, kernel, reading = 5, 8, 11, 3, 5
    model = nn.Sequential(
        nn.Conv2d(3, before, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(before, width, kernel, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(smaller.get("pool", 1)),
        nn.Conv2d(width, after, reading, smaller.get("stride", 1), padding=2),
    )
    whole, less = model.eval(), cut(model, groups(model, EXAMPLE), {"2": range(width - 1)})
    (height, breadth), (next_height, next_breadth) = SIZE, (SIZE[0] // 2, SIZE[1] // 2)
    large, small = (count_cost(each, *SIZE) for each in (whole, less))
    reads, is_read = kernel**2 * before, reading**2 * after
    assert large.macs - small.macs == reads * height * breadth + is_read * next_height * next_breadth
    assert large.parameters - small.parameters == reads + is_read + 2  # and its batch norm


@pytest.mark.slow
def test_a_missed_accuracy_goal_ends_the_roadmap_or_is_refused_at_the_first_step():
    member = Nested(keep_ratios=(0.5, 0.2), accuracy_loss=0.0, prune_epochs=0)
    trained = networks()["plain"]
    train_best(trained, problem(), TrainingSchedule(6, 0.05), np.random.default_rng(0))
    with pytest.raises(RequestError, match="no seed model"):
        member.build(trained, problem())
    context = PruningContext(trained, groups(trained, EXAMPLE), problem())
    whole = grade(trained, problem(), problem().val)
    steps = Nested(keep_ratios=(1.0, 0.1), accuracy_loss=0.02, prune_epochs=0)._prune(context)
    assert len(steps) == 1
    assert grade(steps[0].network, problem(), problem().val) == whole


@pytest.mark.slow
def test_only_prunes_one_group_of_channels():
    model, keep = networks()["plain"], (1.0, 0.5, 0.25)
    member = Nested(only=2, keep_ratios=keep, accuracy_loss=1.0, prune_epochs=0, grow_epochs=0, initial="footprint")
    family = member.build(model, problem())
    sizes = groups(model, EXAMPLE).sizes
    for place, (name, size) in enumerate(sizes.items()):
        shares = keep[::-1] if place == 2 else (1.0, 1.0, 1.0)
        assert family.widths[name] == tuple(round(size * share) for share in shares)
    assert family.val_accuracies[-1] == grade(model, problem(), problem().val)
    assert family.test_accuracies[-1] == grade(model, problem(), problem().test)
    with pytest.raises(RequestError, match="'only' is 4, the network has groups 0 to 3"):
        Nested(only=4).build(model, problem())


class Narrow(nn.Module):
    """A network with a layer of one channel, followed by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.waist, self.norm = nn.Conv2d(3, 1, 3, padding=1, bias=False), nn.BatchNorm2d(1)
        self.deep, self.wide = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Linear(8, factory.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(self.norm(self.waist(x)).relu()).relu()
        logits: torch.Tensor = self.head(self.wide(x).relu().mean(dim=(2, 3)))
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("ranking", ["trr", "l1"])
@pytest.mark.parametrize("shares", ["uniform", "sensitivity"])
def test_a_group_of_one_channel_keeps_it_and_the_others_are_pruned(ranking, shares):
    torch.manual_seed(0)
    model = Narrow().eval()
    member = dataclasses.replace(MEMBER, ranking=ranking, shares=shares, prune_epochs=0, grow_epochs=1)
    family = member.build(model, problem())
    assert groups(model, EXAMPLE).sizes == {"waist": 1, "deep": 1, "wide": 8}
    assert family.widths["waist"] == family.widths["deep"] == (1,) * len(family)
    assert family.widths["wide"] == (2, 4, 6)
    sizes = [family.memory_bytes(which) for which in range(len(family))]
    assert sizes == sorted(set(sizes))
    assert all(extract(family, which)(EXAMPLE).isfinite().all() for which in range(len(family)))


def test_where_the_only_group_is_of_one_channel_there_is_one_network():
    model = Narrow().eval()
    family = dataclasses.replace(MEMBER, only=0, prune_epochs=0, grow_epochs=0).build(model, problem())
    assert family.widths == {"waist": (1,), "deep": (1,), "wide": (8,)}
    assert torch.equal(extract(family, 0)(EXAMPLE), model(EXAMPLE))


def test_later_parameters_at_their_defaults_change_no_cache_key():
    def written(**given: object) -> set[str]:
        member = Member("scaling", "nested", tuple(given.items()))
        return set(_family_origin(FamilyRecipe(Recipe("half"), member))["scaling"])

    later = {"shares": "sensitivity", "causal": True, "batch_norm": "shared_frozen"}
    assert not written() & later.keys()
    for name, value in later.items():
        assert written(**{name: value}) == written() | {name}
