"""Nested networks: what is finished never changes, growing begins where the smaller one ended, switching is a slice."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scaling_factory as factory
import torch
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.core.catalogue import Member
from driftlab.platform.networks import vector
from driftlab.platform.networks.account import account
from driftlab.platform.networks.vector import layout_of, read
from driftlab.platform.pruning.family import dense, restored, stored
from driftlab.platform.pruning.surgery import cut, groups, permute
from driftlab.platform.scaling import growing
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.growing import Footprint, Ground, Growth, keeping_statistics
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.training import schooling
from driftlab.platform.training.artifacts import FamilyRecipe, Recipe, _family_origin
from driftlab.platform.training.descent import Descent
from driftlab.platform.training.schooling import Course, epochs, grade, teach

KEEP, SIZE, networks, numbers, problem = (
    factory.KEEP, factory.SIZE, factory.networks, factory.numbers, factory.problem
)  # fmt: skip

MEMBER = Nested(keep=KEEP, accuracy_loss=1.0, prune_epochs=1, grow_epochs=2, ranked_on=100)
COURSE = Course(epochs=1, learning_rate=0.05, weight_decay=0.1)
EXAMPLE = factory.some_images()


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in numbers(model).values())).hexdigest()


class Witness:
    """Builds a family and remembers every descendant as it was finished."""

    def __init__(self, name: str, member: Nested = MEMBER) -> None:
        self.name, self.vanilla = name, networks()[name]
        before = digest(self.vanilla)
        self.ground = Ground(self.vanilla, groups(self.vanilla, EXAMPLE), problem())
        self.roadmap = member._prune(self.ground)
        self.order = growing.nested_order(self.ground.groups, self.roadmap)
        how = member._growth(self.ground)
        self.digests: list[str] = []  # each taken as soon as the descendant was finished
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(growing, "grown", self._noting(growing.grown))
            self.descendants = member._freeze_and_grow(self.ground, how, self.roadmap)
        self.digests.append(digest(self.descendants[-1]))
        self.family = growing.multi_capacity(self.ground, how, self.roadmap, self.descendants)
        assert digest(self.vanilla) == before

    def _noting(self, grow: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        def noted(ground: Ground, how: Growth, descendant: nn.Module, *footprints: Any) -> nn.Module:
            self.digests.append(digest(descendant))
            return grow(ground, how, descendant, *footprints)

        return noted


def manner(built: Witness, initial: growing.Initial, *, causal: bool = False) -> Growth:
    return growing.growth(built.ground, initial, "private", causal=causal)


def free(built: Witness, how: Growth, begun: nn.Module, small: Footprint, large: Footprint) -> np.ndarray:
    return growing.new_coordinates(begun, growing.finished(built.ground, how, small, large))


def grown(built: Witness, how: Growth, descendant: nn.Module, small: Footprint, large: Footprint) -> nn.Module:
    return growing.grown(built.ground, how, descendant, small, large, built.order)


@pytest.fixture(scope="module", params=["plain", "residual"])
def built(request) -> Witness:
    return Witness(request.param)


@pytest.mark.slow
def test_footprints_lie_inside_one_another(built):
    assert len(built.roadmap) == len(KEEP)
    for large, small in itertools.pairwise(built.roadmap):
        for name, channels in small.kept.items():
            assert set(channels.tolist()) < set(large.kept[name].tolist())
            assert channels.tolist() == sorted(channels.tolist())
    for name, size in built.ground.groups.sizes.items():
        assert [len(each.kept[name]) for each in built.roadmap] == [max(2, round(share * size)) for share in KEEP]


def test_nested_order_computes_the_same(built):
    reordered = permute(built.vanilla, built.ground.groups, built.order)
    assert torch.allclose(reordered(EXAMPLE), built.vanilla(EXAMPLE), atol=1e-5)
    for footprint in built.roadmap:
        settled = growing.settled(built.ground, footprint, built.order)
        assert torch.allclose(settled(EXAMPLE), footprint.network(EXAMPLE), atol=1e-5)


def test_a_finished_descendant_stays_as_it_was_to_the_bit(built):
    for which, finished in enumerate(built.descendants):
        again = dense(built.family, which)
        assert digest(again) == digest(finished) == built.digests[which]
        assert torch.equal(again(EXAMPLE), finished(EXAMPLE))


def test_growing_begins_with_what_the_smaller_one_computes(built):
    footprints = built.roadmap[::-1]
    for small, large, descendant in zip(footprints, footprints[1:], built.descendants, strict=False):
        begun, bare = (
            grown(built, manner(built, initial), descendant, small, large).eval()
            for initial in ("preserve", "footprint")
        )
        assert torch.allclose(begun(EXAMPLE), descendant(EXAMPLE), atol=1e-6)
        assert not torch.allclose(bare(EXAMPLE), descendant(EXAMPLE), atol=1e-5)
        assert all(tensor[-1].abs().sum() > 0 for tensor in begun.parameters() if tensor.dim() == 4)


def test_from_scratch_nothing_that_is_new_is_of_the_footprint_and_all_that_is_old_is_the_smaller_ones(built):
    small, large, descendant = *built.roadmap[:-3:-1], built.descendants[0]
    scratch, footprint = (manner(built, initial) for initial in ("scratch", "footprint"))
    with torch.random.fork_rng(devices=()):
        fresh, known = (grown(built, how, descendant, small, large) for how in (scratch, footprint))
    new = free(built, scratch, fresh, small, large)
    assert np.array_equal(read(fresh)[~new], read(known)[~new])
    for name, span in layout_of(fresh).spans.items():
        if len(fresh.get_parameter(name).shape) > 1:
            assert (read(fresh)[span][new[span]] != read(known)[span][new[span]]).all()
    old = dict(descendant.named_buffers())
    for name, statistic in fresh.named_buffers():
        if statistic.dim():
            count = len(old[name])
            assert torch.equal(statistic[:count], old[name])
            assert (statistic[count:] == float(name.endswith("var"))).all()


def test_accuracy_on_what_was_chosen_by_never_falls(built):
    scores = [grade(network, problem(), problem().val) for network in built.descendants]
    assert scores == sorted(scores)


def test_what_is_frozen_stays_under_weight_decay_without_momentum_and_everything_else_moves(built, monkeypatch):
    walks: list[Descent] = []
    monkeypatch.setattr(schooling, "Descent", lambda *given: walks.append(Descent(*given)) or walks[-1])
    small, large = built.roadmap[-1], built.roadmap[-2]
    how = manner(built, "preserve")
    begun = grown(built, how, built.descendants[0], small, large)
    new = free(built, how, begun, small, large)
    before, layout = read(begun), layout_of(begun)
    list(epochs(begun, problem(), COURSE, np.random.default_rng(0), new))
    after, (walk,) = read(begun), walks
    assert walk.steps >= 10
    assert [len(moment) for moment in walk.moments()] == [new.sum()]
    assert np.array_equal(after[~new], before[~new])
    assert (after[new] != before[new]).mean() > 0.9
    frozen = {name: (~new[span]).sum() for name, span in layout.spans.items()}
    descendant = dict(built.descendants[0].named_parameters())
    assert frozen == {name: tensor.numel() if tensor.dim() > 1 else 0 for name, tensor in descendant.items()}


@pytest.mark.parametrize("initial", ["preserve", "footprint", "scratch"])
def test_causal_filters_never_read_what_came_later_and_the_classifier_reads_everything(built, initial):
    small, large, descendant = *built.roadmap[:-3:-1], built.descendants[0]
    how = manner(built, initial, causal=True)
    begun = grown(built, how, descendant, small, large)
    new = free(built, how, begun, small, large)
    list(epochs(begun, problem(), COURSE, np.random.default_rng(0), new))
    for name, weights in begun.named_parameters():
        old = descendant.get_parameter(name)
        if name == "head.weight":
            assert weights[:, old.shape[1] :].all()
        elif weights.dim() > 1:
            outputs, inputs, *_ = old.shape
            assert not weights[:outputs, inputs:].any()
            assert weights[outputs:].all()


@pytest.mark.slow
def test_of_a_causal_family_what_old_filters_would_read_of_new_ones_is_zero():
    descendants = Witness("plain", dataclasses.replace(MEMBER, initial="footprint", causal=True)).descendants
    for small, large in itertools.pairwise(descendants):
        for name in ("deep.0.0.weight", "deep.1.0.weight", "deep.2.0.weight"):
            outputs, inputs, *_ = small.get_parameter(name).shape
            assert not large.get_parameter(name)[:outputs, inputs:].any()
            assert large.get_parameter(name)[outputs:, inputs:].any()


@pytest.fixture(scope="module", params=["plain", "residual"])
def frozen(request) -> Witness:
    return Witness(
        request.param, dataclasses.replace(MEMBER, initial="footprint", causal=True, batch_norm="shared_frozen")
    )


@pytest.mark.slow
def test_shared_batch_norms_are_the_beginning_of_the_larger_ones_and_stay_as_they_were(frozen):
    test_a_finished_descendant_stays_as_it_was_to_the_bit(frozen)
    for small, large in itertools.pairwise(map(numbers, frozen.descendants)):
        for name, tensor in small.items():
            if tensor.dim() == 1 and name != "head.bias":
                assert torch.equal(tensor, large[name][: len(tensor)])
                assert len(tensor) < len(large[name])
    assert any("running_mean" in name for name in small)


def test_shared_batch_norms_are_counted_once(frozen):
    own = set(frozen.family.private[0])
    assert own == {name for name in numbers(frozen.vanilla) if name == "head.bias" or name.endswith("tracked")}
    each = sum(array.nbytes for array in frozen.family.private[0].values())
    for which, descendant in enumerate(frozen.descendants):
        weights = account(descendant, *SIZE).weight_bytes
        assert frozen.family.memory_bytes(which) == weights + each * (len(frozen.descendants) - 1)


def test_what_one_learns_of_shared_batch_norms_reaches_all(frozen):
    taught = dense(frozen.family, 1)
    vector.write(taught, read(taught) + np.float32(0.25))
    after = MEMBER.absorb(frozen.family, taught)
    small, middle, large = (numbers(dense(after, which)) for which in range(3))
    assert digest(dense(after, 1)) == digest(taught)
    for name, tensor in small.items():
        if tensor.dim() == 1 and name != "head.bias":
            assert torch.equal(middle[name][: len(tensor)], tensor)
            assert torch.equal(large[name][: len(middle[name])], middle[name])


def test_what_old_filters_of_a_causal_family_with_shared_batch_norms_see_is_the_same_in_all_networks(frozen):
    def seen(model: nn.Module) -> dict[str, torch.Tensor]:
        maps = {}
        layers = {name: layer for name, layer in model.named_modules() if name != "head" and [*layer.parameters(False)]}
        for name, layer in layers.items():
            layer.register_forward_hook(lambda _, given, made, name=name: maps.update({name: made.clone()}))
        with torch.inference_mode():
            model.eval()(EXAMPLE)
        return maps

    maps = [seen(dense(frozen.family, which)) for which in range(3)]
    for small, large in itertools.pairwise(maps):
        for name, features in small.items():
            assert torch.allclose(features, large[name][:, : features.shape[1]], atol=1e-5)


def test_while_it_learns_old_channels_are_normalised_as_ever_and_new_ones_by_the_batch():
    norm, images = nn.BatchNorm2d(3), torch.randn(6, 3, 4, 4) * 3 + 1
    norm.running_mean.uniform_(-1, 1)
    network, ever = nn.Sequential(norm), copy.deepcopy(norm).eval()
    batch, before = copy.deepcopy(norm).train(), norm.running_mean.clone()
    old = torch.tensor([True, False, True])
    with keeping_statistics(network, {"0.running_mean": old, "0.running_var": old}):
        learning, resting = network.train()(images), network.eval()(images)
    assert torch.equal(learning[:, old], ever(images)[:, old])
    assert torch.equal(resting[:, old], ever(images)[:, old])
    assert torch.equal(learning[:, ~old], batch(images)[:, ~old])
    assert torch.equal(norm.running_mean[old], before[old]) and torch.equal(norm.running_var[old], torch.ones(2))
    assert torch.equal(norm.running_mean[~old], batch.running_mean[~old])
    assert torch.equal(network.train()(images), batch(images))


@pytest.mark.parametrize("smaller", [{"pool": 2}, {"stride": 2}])
def test_one_filter_less_saves_what_it_reads_at_its_size_and_what_reads_it_at_the_next(smaller: dict[str, int]):
    """No two numbers here are the same: a term in the place of another would be seen."""
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
    large, small = (account(each, *SIZE) for each in (whole, less))
    reads, is_read = kernel**2 * before, reading**2 * after
    assert large.macs - small.macs == reads * height * breadth + is_read * next_height * next_breadth
    assert large.parameters - small.parameters == reads + is_read + 2  # and its batch norm


def test_every_network_is_the_beginning_of_the_next_ones_vector(built):
    family = built.family
    ends = family.ends()
    assert list(ends) == sorted(set(ends)) and ends[-1] == len(family.shared)
    for k, places in enumerate(family.places):
        assert sorted(places.tolist()) == list(range(ends[k]))
    memory = [family.memory_bytes(k) for k in range(3)]
    assert memory[2] - memory[0] == family.shared[ends[0] : ends[2]].nbytes


def test_a_family_survives_as_plain_arrays(built):
    arrays = {name: np.array(array) for name, array in stored(built.family).items()}
    again = restored(networks()[built.name], arrays, SIZE)
    assert again.accuracies == built.family.accuracies
    for which in range(3):
        assert digest(dense(again, which)) == digest(dense(built.family, which))


def test_what_one_learns_reaches_all_who_share_it(built):
    family = built.family
    taught = dense(family, 1)
    with torch.no_grad():
        for tensor in taught.parameters():
            tensor.add_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)))
    after = MEMBER.absorb(family, taught)
    assert digest(dense(after, 1)) == digest(taught)
    small, middle, large = (dict(dense(after, k).named_parameters()) for k in range(3))
    old = [dict(dense(family, k).named_parameters()) for k in range(3)]
    for name, tensor in small.items():
        part = tuple(slice(size) for size in tensor.shape)
        if tensor.dim() == 4:  # of a linear layer the smaller network's columns lie apart
            assert torch.equal(tensor, middle[name][part]) and torch.equal(tensor, large[name][part])
        elif tensor.dim() == 1:
            step = middle[name] - old[1][name]
            assert torch.allclose(tensor - old[0][name], step[: len(tensor)], atol=1e-6)
            assert torch.allclose((large[name] - old[2][name])[: len(step)], step, atol=1e-6)
            assert torch.equal(large[name][len(step) :], old[2][name][len(step) :])
    assert family.shared is not after.shared and digest(dense(family, 1)) == digest(built.descendants[1])


def test_only_its_own_networks_are_taken_back(built):
    with pytest.raises(RequestError, match="none of the family's 3 networks"):
        MEMBER.absorb(built.family, built.vanilla)


@pytest.mark.slow
def test_the_same_seed_builds_the_same_family_and_leaves_other_generators_alone():
    torch.manual_seed(9)
    before = torch.get_rng_state()
    first, again = (MEMBER.build(networks()["plain"], problem()) for _ in range(2))
    torch.manual_seed(9)
    assert torch.equal(before, torch.get_rng_state())
    assert first.shared.tobytes() == again.shared.tobytes() and first.accuracies == again.accuracies


@pytest.mark.slow
def test_a_goal_out_of_reach_is_refused_and_one_that_is_missed_later_ends_the_roadmap():
    member = Nested(keep=(0.5, 0.2), accuracy_loss=0.0, prune_epochs=0)
    trained = networks()["plain"]
    teach(trained, problem(), Course(6, 0.05), np.random.default_rng(0))
    with pytest.raises(RequestError, match="there is no seed"):
        member.build(trained, problem())
    ground = Ground(trained, groups(trained, EXAMPLE), problem())
    whole = grade(trained, problem(), problem().val)
    steps = Nested(keep=(1.0, 0.1), accuracy_loss=0.02, prune_epochs=0)._prune(ground)
    assert len(steps) == 1
    assert grade(steps[0].network, problem(), problem().val) == whole


def test_one_group_of_channels_is_pruned_and_the_others_stay():
    model, keep = networks()["plain"], (1.0, 0.5, 0.25)
    member = Nested(only=2, keep=keep, accuracy_loss=1.0, prune_epochs=0, grow_epochs=0, initial="footprint")
    family = member.build(model, problem())
    sizes = groups(model, EXAMPLE).sizes
    for place, (name, size) in enumerate(sizes.items()):
        shares = keep[::-1] if place == 2 else (1.0, 1.0, 1.0)
        assert family.widths[name] == tuple(round(size * share) for share in shares)
    assert family.accuracies[-1] == grade(model, problem(), problem().val)
    assert family.judged[-1] == grade(model, problem(), problem().test)
    with pytest.raises(RequestError, match="'only' is 4, the network has groups 0 to 3"):
        Nested(only=4).build(model, problem())


class Narrow(nn.Module):
    """Everything passes through one channel, which a layer of its own then filters."""

    def __init__(self) -> None:
        super().__init__()
        self.waist, self.norm = nn.Conv2d(3, 1, 3, padding=1, bias=False), nn.BatchNorm2d(1)
        self.deep, self.wide = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Linear(8, factory.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(self.norm(self.waist(x)).relu()).relu()
        logits: torch.Tensor = self.head(self.wide(x).relu().mean(dim=(2, 3)))
        return logits


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
    assert all(dense(family, which)(EXAMPLE).isfinite().all() for which in range(len(family)))


def test_where_the_only_group_is_of_one_channel_there_is_one_network():
    model = Narrow().eval()
    family = dataclasses.replace(MEMBER, only=0, prune_epochs=0, grow_epochs=0).build(model, problem())
    assert family.widths == {"waist": (1,), "deep": (1,), "wide": (8,)}
    assert torch.equal(dense(family, 0)(EXAMPLE), model(EXAMPLE))


def test_a_budget_names_the_network_or_limits_its_memory(built):
    family = built.family
    sizes = [family.memory_bytes(which) for which in range(3)]
    assert layout_of(MEMBER.select(family, Budget(memory_bytes=sizes[0]))) == layout_of(dense(family, 0))
    assert layout_of(MEMBER.select(family, Budget(memory_bytes=1))) == layout_of(dense(family, 0))
    assert layout_of(MEMBER.select(family, Budget(variant=2))) == layout_of(dense(family, 2))
    best = int(np.argmax(family.accuracies))
    assert layout_of(MEMBER.select(family, Budget())) == layout_of(dense(family, best))
    with pytest.raises(RequestError, match="networks 0 to 2"):
        MEMBER.select(family, Budget(variant=3))


def test_a_parameter_that_came_later_leaves_what_was_built_before_where_it_is_kept():
    def written(**given: object) -> set[str]:
        member = Member("scaling", "nested", tuple(given.items()))
        return set(_family_origin(FamilyRecipe(Recipe("half"), member))["scaling"])

    later = {"shares": "sensitivity", "causal": True, "batch_norm": "shared_frozen"}
    assert not written() & later.keys()
    for name, value in later.items():
        assert written(**{name: value}) == written() | {name}
