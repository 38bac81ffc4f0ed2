"""NestDNN's nested networks: frozen weights stay, growing keeps outputs, a switch moves a slice."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from nested_factory import EXAMPLE, KEEP, MEMBER, SIZE, RecordingBuilder, digest, networks, numbers, problem
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.networks import vector
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.pruning.family import extract, restore, store
from driftlab.platform.networks.pruning.surgery import permute
from driftlab.platform.networks.training import training_loop
from driftlab.platform.networks.training.descent import Descent
from driftlab.platform.networks.training.training_loop import TrainingSchedule, epochs
from driftlab.platform.networks.vector import layout_of, read
from driftlab.platform.scaling import growing
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.growing import Footprint, Growth

SCHEDULE = TrainingSchedule(epochs=1, learning_rate=0.05, weight_decay=0.1)


def plan_growth(built: RecordingBuilder, initial: growing.Initial, *, causal: bool = False) -> Growth:
    return growing.plan_growth(built.context, initial, "private", causal=causal)


def free(built: RecordingBuilder, how: Growth, begun: nn.Module, small: Footprint, large: Footprint) -> np.ndarray:
    return growing.new_coordinates(begun, growing.mark_finished(built.context, how, small, large))


def grown(built: RecordingBuilder, how: Growth, descendant: nn.Module, small: Footprint, large: Footprint) -> nn.Module:
    return growing.grow(built.context, how, descendant, small, large, built.order)


@pytest.fixture(scope="module", params=["plain", "residual"])
def built(request) -> RecordingBuilder:
    return RecordingBuilder(request.param)


@pytest.mark.slow
def test_footprints_are_nested(built):
    assert len(built.roadmap) == len(KEEP)
    for large, small in itertools.pairwise(built.roadmap):
        for name, channels in small.kept.items():
            assert set(channels.tolist()) < set(large.kept[name].tolist())
            assert channels.tolist() == sorted(channels.tolist())
    for name, size in built.context.groups.sizes.items():
        assert [len(each.kept[name]) for each in built.roadmap] == [max(2, round(share * size)) for share in KEEP]


def test_nested_order_changes_no_output(built):
    reordered = permute(built.vanilla, built.context.groups, built.order)
    assert torch.allclose(reordered(EXAMPLE), built.vanilla(EXAMPLE), atol=1e-5)
    for footprint in built.roadmap:
        settled = growing.reorder_nested(built.context, footprint, built.order)
        assert torch.allclose(settled(EXAMPLE), footprint.network(EXAMPLE), atol=1e-5)


def test_finished_descendants_keep_every_bit(built):
    for which, finished in enumerate(built.descendants):
        again = extract(built.family, which)
        assert digest(again) == digest(finished) == built.digests[which]
        assert torch.equal(again(EXAMPLE), finished(EXAMPLE))


def test_growing_with_preserve_starts_with_the_outputs_of_the_smaller_network(built):
    footprints = built.roadmap[::-1]
    for small, large, descendant in zip(footprints, footprints[1:], built.descendants, strict=False):
        begun, bare = (
            grown(built, plan_growth(built, initial), descendant, small, large).eval()
            for initial in ("preserve", "footprint")
        )
        assert torch.allclose(begun(EXAMPLE), descendant(EXAMPLE), atol=1e-6)
        assert not torch.allclose(bare(EXAMPLE), descendant(EXAMPLE), atol=1e-5)
        assert all(tensor[-1].abs().sum() > 0 for tensor in begun.parameters() if tensor.dim() == 4)


def test_growing_from_scratch_uses_no_weights_of_the_footprint(built):
    small, large, descendant = *built.roadmap[:-3:-1], built.descendants[0]
    scratch, footprint = (plan_growth(built, initial) for initial in ("scratch", "footprint"))
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


def test_frozen_coordinates_stay_under_weight_decay_and_all_others_change(built, monkeypatch):
    descents: list[Descent] = []
    monkeypatch.setattr(training_loop, "Descent", lambda *given: descents.append(Descent(*given)) or descents[-1])
    small, large = built.roadmap[-1], built.roadmap[-2]
    how = plan_growth(built, "preserve")
    begun = grown(built, how, built.descendants[0], small, large)
    new = free(built, how, begun, small, large)
    before, layout = read(begun), layout_of(begun)
    list(epochs(begun, problem(), SCHEDULE, np.random.default_rng(0), new))
    after, (descent,) = read(begun), descents
    assert descent.steps >= 10
    assert [len(moment) for moment in descent.moments()] == [new.sum()]
    assert np.array_equal(after[~new], before[~new])
    assert (after[new] != before[new]).mean() > 0.9
    frozen = {name: (~new[span]).sum() for name, span in layout.spans.items()}
    descendant = dict(built.descendants[0].named_parameters())
    assert frozen == {name: tensor.numel() if tensor.dim() > 1 else 0 for name, tensor in descendant.items()}


@pytest.mark.parametrize("initial", ["preserve", "footprint", "scratch"])
def test_causal_filters_never_read_grown_ones_and_the_classifier_reads_all(built, initial):
    small, large, descendant = *built.roadmap[:-3:-1], built.descendants[0]
    how = plan_growth(built, initial, causal=True)
    begun = grown(built, how, descendant, small, large)
    new = free(built, how, begun, small, large)
    list(epochs(begun, problem(), SCHEDULE, np.random.default_rng(0), new))
    for name, weights in begun.named_parameters():
        old = descendant.get_parameter(name)
        if name == "head.weight":
            assert weights[:, old.shape[1] :].all()
        elif weights.dim() > 1:
            outputs, inputs, *_ = old.shape
            assert not weights[:outputs, inputs:].any()
            assert weights[outputs:].all()


@pytest.fixture(scope="module", params=["plain", "residual"])
def frozen(request) -> RecordingBuilder:
    return RecordingBuilder(
        request.param, dataclasses.replace(MEMBER, initial="footprint", causal=True, batch_norm="shared_frozen")
    )


@pytest.mark.slow
def test_shared_batch_norms_are_prefixes_of_larger_ones_and_stay(frozen):
    test_finished_descendants_keep_every_bit(frozen)
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
        weights = count_cost(descendant, *SIZE).weight_bytes
        assert frozen.family.memory_bytes(which) == weights + each * (len(frozen.descendants) - 1)


def test_absorb_updates_shared_batch_norms_of_all_networks(frozen):
    taught = extract(frozen.family, 1)
    vector.write(taught, read(taught) + np.float32(0.25))
    after = MEMBER.absorb(frozen.family, taught)
    small, middle, large = (numbers(extract(after, which)) for which in range(3))
    assert digest(extract(after, 1)) == digest(taught)
    for name, tensor in small.items():
        if tensor.dim() == 1 and name != "head.bias":
            assert torch.equal(middle[name][: len(tensor)], tensor)
            assert torch.equal(large[name][: len(middle[name])], middle[name])


def test_causal_families_with_shared_batch_norms_have_equal_old_features(frozen):
    def seen(model: nn.Module) -> dict[str, torch.Tensor]:
        maps = {}
        layers = {name: layer for name, layer in model.named_modules() if name != "head" and [*layer.parameters(False)]}
        for name, layer in layers.items():
            layer.register_forward_hook(lambda _, given, made, name=name: maps.update({name: made.clone()}))
        with torch.inference_mode():
            model.eval()(EXAMPLE)
        return maps

    maps = [seen(extract(frozen.family, which)) for which in range(3)]
    for small, large in itertools.pairwise(maps):
        for name, features in small.items():
            assert torch.allclose(features, large[name][:, : features.shape[1]], atol=1e-5)


def test_each_network_is_a_prefix_of_the_shared_vector(built):
    family = built.family
    ends = family.ends()
    assert list(ends) == sorted(set(ends)) and ends[-1] == len(family.shared)
    for k, places in enumerate(family.places):
        assert sorted(places.tolist()) == list(range(ends[k]))
    memory = [family.memory_bytes(k) for k in range(3)]
    assert memory[2] - memory[0] == family.shared[ends[0] : ends[2]].nbytes


def test_restore_returns_the_stored_family(built):
    arrays = {name: np.array(array) for name, array in store(built.family).items()}
    again = restore(networks()[built.name], arrays, SIZE)
    assert again.val_accuracies == built.family.val_accuracies
    for which in range(3):
        assert digest(extract(again, which)) == digest(extract(built.family, which))


def test_absorb_updates_shared_weights_of_all_networks(built):
    family = built.family
    taught = extract(family, 1)
    with torch.no_grad():
        for tensor in taught.parameters():
            tensor.add_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)))
    after = MEMBER.absorb(family, taught)
    assert digest(extract(after, 1)) == digest(taught)
    small, middle, large = (dict(extract(after, k).named_parameters()) for k in range(3))
    old = [dict(extract(family, k).named_parameters()) for k in range(3)]
    for name, tensor in small.items():
        part = tuple(slice(size) for size in tensor.shape)
        if tensor.dim() == 4:  # of a linear layer the smaller network's columns lie apart
            assert torch.equal(tensor, middle[name][part]) and torch.equal(tensor, large[name][part])
        elif tensor.dim() == 1:
            step = middle[name] - old[1][name]
            assert torch.allclose(tensor - old[0][name], step[: len(tensor)], atol=1e-6)
            assert torch.allclose((large[name] - old[2][name])[: len(step)], step, atol=1e-6)
            assert torch.equal(large[name][len(step) :], old[2][name][len(step) :])
    assert family.shared is not after.shared and digest(extract(family, 1)) == digest(built.descendants[1])


def test_absorb_refuses_a_network_of_another_family(built):
    with pytest.raises(RequestError, match="none of the family's 3 networks"):
        MEMBER.absorb(built.family, built.vanilla)


def test_select_uses_the_variant_or_the_memory_limit(built):
    family = built.family
    sizes = [family.memory_bytes(which) for which in range(3)]
    assert layout_of(MEMBER.select(family, Budget(memory_bytes=sizes[0]))) == layout_of(extract(family, 0))
    assert layout_of(MEMBER.select(family, Budget(memory_bytes=1))) == layout_of(extract(family, 0))
    assert layout_of(MEMBER.select(family, Budget(variant=2))) == layout_of(extract(family, 2))
    best = int(np.argmax(family.val_accuracies))
    assert layout_of(MEMBER.select(family, Budget())) == layout_of(extract(family, best))
    with pytest.raises(RequestError, match="networks 0 to 2"):
        MEMBER.select(family, Budget(variant=3))
