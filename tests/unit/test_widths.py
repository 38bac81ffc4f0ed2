"""Baselines of nested networks: independent training, or joint training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.errors import RequestError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.pruning.depth import removable_blocks
from driftlab.platform.networks.pruning.family import absorb, extract, merge_networks, restore, store
from driftlab.platform.networks.pruning.ranking import rank
from driftlab.platform.networks.pruning.surgery import cut, groups
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames, TrainingSchedule, grade
from driftlab.platform.scaling import slimming
from driftlab.platform.scaling.base import width_of
from driftlab.platform.scaling.growing import PruningContext, prefix_of
from driftlab.platform.scaling.independent import Independent
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.scaling.once_for_all import OnceForAll
from driftlab.platform.scaling.usnet import UsNet

EXAMPLE = factory.some_images()


def context() -> PruningContext:
    model = factory.networks()["plain"]
    return PruningContext(model, groups(model, EXAMPLE), factory.problem())


def test_the_whole_width_is_the_plain_network_to_the_bit():
    here, shapes = context(), {}
    here.model.train()
    with torch.no_grad():
        slim = slimming._run_narrow(here, here.model, shapes, 1.0, EXAMPLE)
        assert torch.equal(slim, here.model(EXAMPLE))


def test_every_width_moves_the_weights_it_reads_and_no_other():
    here = context()
    slimming._run_narrow(here, here.model, {}, 0.5, EXAMPLE).sum().backward()
    keep = prefix_of(here, 0.5)
    weight = here.model.deep[1][0].weight
    inside = weight.grad[: len(keep["deep.1.0"]), : len(keep["deep.0.0"])]
    assert bool((inside != 0).any())
    assert weight.grad.count_nonzero() == inside.count_nonzero()


def test_a_step_trains_the_widest_first_then_the_narrowest_then_some_between():
    rng = np.random.default_rng(0)
    for _ in range(20):
        widest, narrowest, *others = slimming.draw_widths((0.8, 0.5, 0.2), 5, rng)
        assert (widest, narrowest, len(others)) == (0.8, 0.2, 3)
        assert all(0.2 <= share <= 0.8 for share in others)


def test_imitation_is_least_where_both_believe_the_same():
    teacher_logits = torch.tensor([[2.0, 0.0, -1.0]])
    output = teacher_logits.clone().requires_grad_()
    slimming.distillation_loss(output, teacher_logits).backward()
    assert torch.allclose(output.grad, torch.zeros(1, 3), atol=1e-7)
    assert slimming.distillation_loss(-teacher_logits, teacher_logits) > slimming.distillation_loss(
        teacher_logits, teacher_logits
    )


def test_calibrate_measures_the_statistics_of_one_width():
    here = context()
    before = factory.numbers(here.model)
    schedule = TrainingSchedule(0, 0.1, batch=8)
    small = slimming.calibrate(here, here.model, 0.5, schedule, batches=1)
    rows = here.rng("calibration").integers(len(here.data.train), size=(1, 8))[0]
    seen = []
    bare = cut(here.model, here.groups, prefix_of(here, 0.5))
    bare.first[0].register_forward_hook(lambda _, given, made: seen.append(made))
    bare((torch.from_numpy(here.data.train.images[rows]).float() - 127.5).permute(0, 3, 1, 2) / 63.75)
    assert torch.allclose(small.first[1].running_mean, seen[0].mean(dim=(0, 2, 3)), atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in here.model.state_dict().items())


@pytest.mark.slow
def test_joint_training_fits_all_widths():
    here = context()
    member = UsNet(keep_ratios=factory.KEEP, epochs=4, learning_rate=0.05)
    family = member.build(here.model, here.data)
    for which, share in enumerate(factory.KEEP[::-1]):
        bare = slimming.calibrate(here, here.model, share, TrainingSchedule(0, 0.1), 5)
        assert family.val_accuracies[which] > grade(bare, here.data, here.data.test) + 0.1
    largest, smallest = extract(family, 2), extract(family, 0)
    corner = largest.deep[1][0].weight[: smallest.deep[1][0].out_channels, : smallest.deep[1][0].in_channels]
    assert torch.equal(corner, smallest.deep[1][0].weight)


@pytest.mark.parametrize("start", ["scratch", "pruned"])
def test_independent_networks_share_no_weights_and_start_as_configured(start):
    here = context()
    family = Independent(keep_ratios=(0.5, 0.25), start=start, epochs=0).build(here.model, here.data)
    assert family.shared.size == 0
    mine = set(here.model.first[0].weight.flatten().tolist())
    theirs = set(extract(family, 1).first[0].weight.flatten().tolist())
    assert theirs <= mine if start == "pruned" else not theirs & mine
    own = [sum(array.nbytes for array in private.values()) for private in family.private]
    assert [family.memory_bytes(which) for which in range(2)] == own


def test_independent_networks_train_on_the_pretraining_set():
    here = context()
    member, plain = (
        Independent(keep_ratios=(0.5,), epochs=0, pretrain_set_epochs=2),
        Independent(keep_ratios=(0.5,), epochs=0),
    )
    with pytest.raises(RequestError, match=r"student\.pretrain_set"):
        member.build(here.model, here.data)
    turned = replace(here.data, elsewhere=lambda: more_classes(here.data))
    taught, begun = (extract(each.build(here.model, turned), 0).state_dict() for each in (member, plain))
    head = [name for name in taught if name.startswith("head")]
    assert head and all(torch.equal(taught[name], begun[name]) for name in head)
    assert not torch.equal(taught["first.0.weight"], begun["first.0.weight"])
    assert Independent(start="pruned", pretrain_set_epochs=1).faults()


def more_classes(data):
    """Return the same frames with one more class, in another order."""
    labelled = (LabelledFrames(part.images, data.classes - part.labels) for part in (data.train, data.val, data.test))
    return DataSplits(data.task, data.classes + 1, *labelled)


@pytest.mark.slow
@pytest.mark.parametrize(
    "member",
    [
        Nested(keep_ratios=(0.75, 0.5, 0.49, 0.25), accuracy_loss=1.0, prune_epochs=0, grow_epochs=0),
        Independent(keep_ratios=(0.75, 0.5, 0.49, 0.25), epochs=0),
        UsNet(keep_ratios=(0.75, 0.5, 0.49, 0.25), epochs=0),
    ],
    ids=["nested", "independent", "usnet"],
)
def test_shares_of_the_same_whole_channels_are_one_network(member):
    here = context()
    family = member.build(here.model, here.data)
    assert len(family) == 3
    macs = [one.cost.macs for one in member.profile(family, factory.SIZE)]
    assert macs == sorted(set(macs))


def test_a_network_without_a_block_is_nested_and_absorbed():
    model = build("tiny_residual", factory.CLASSES, seed=0).eval()
    here = PruningContext(model, groups(model, EXAMPLE), factory.problem())
    (block,) = removable_blocks(model)
    assert block == "deep.1"
    shares = [{**dict.fromkeys(here.groups.sizes, share), block: kept} for share, kept in ((0.5, 0.0), (1.0, 1.0))]
    networks = [slimming.calibrate(here, model, each, TrainingSchedule(0, 0.1, 8), 1) for each in shares]
    widths = {name: tuple(width_of(size, each[name]) for each in shares) for name, size in here.groups.sizes.items()}
    own = {name for name, _ in model.named_buffers()}
    family = merge_networks(model, here.groups, {**widths, block: (0, 1)}, networks, own=own)
    family = restore(build("tiny_residual", factory.CLASSES, seed=1), store(family), factory.SIZE)
    small, whole = (extract(family, which) for which in (0, 1))
    assert isinstance(small.get_submodule(block), torch.nn.Identity)
    with torch.no_grad():
        assert torch.equal(small(EXAMPLE), networks[0](EXAMPLE)) and torch.equal(whole(EXAMPLE), networks[1](EXAMPLE))
        for parameter in small.parameters():
            parameter += 1
        learned = absorb(family, small)
        assert torch.equal(extract(learned, 0)(EXAMPLE), small(EXAMPLE))
        after = extract(learned, 1)
    taught = len(small.first[0].weight)
    assert torch.equal(after.first[0].weight[:taught], small.first[0].weight)
    assert torch.equal(after.first[0].weight[taught:], whole.first[0].weight[taught:])
    assert torch.equal(after.deep[1].inner[0].weight, whole.deep[1].inner[0].weight)


def test_a_step_trains_the_smallest_network_without_any_block():
    model = build("tiny_residual", factory.CLASSES, seed=0).train()
    here = PruningContext(model, groups(model, EXAMPLE), factory.problem())
    whole, smallest, *others = OnceForAll(keep_ratios=(1.0, 0.5), widths=40)._draw_step(here, np.random.default_rng(0))
    assert whole == 1.0 and smallest["deep.1"] == 0 and {each["deep.1"] for each in others} == {0.0, 1.0}
    slimming._run_narrow(here, model, {}, smallest, EXAMPLE).sum().backward()
    assert model.deep[1].inner[0].weight.grad is None and bool(model.deep[0].inner[0].weight.grad.any())
    (_, thin, *_) = OnceForAll(keep_ratios=(1.0, 0.5), depth=False)._draw_step(here, np.random.default_rng(0))
    assert "deep.1" not in thin


def test_progressive_training_starts_with_the_full_network_then_depths_then_widths(monkeypatch):
    model, phases = build("tiny_residual", factory.CLASSES, seed=0).eval(), dict[str, tuple[int, Any]]()
    here = PruningContext(model, groups(model, EXAMPLE), factory.problem())

    def train(context: Any, draws: Any, schedule: TrainingSchedule, begin: Any, purpose: str) -> torch.nn.Module:
        scores = rank(begin, context.groups, "l1", images=None, labels=None, rng=None).values()
        in_order = all(torch.equal(each, each.sort(descending=True).values) for each in scores)
        assert in_order == purpose.endswith("widths")
        phases[purpose.partition("/")[2]] = schedule.epochs, list(draws(np.random.default_rng(0)))
        return begin

    monkeypatch.setattr(slimming, "train_widths", train)
    member, schedule = OnceForAll(keep_ratios=(0.9, 0.5), epochs=8, training="progressive"), TrainingSchedule(8, 0.1, 8)
    member._train(here, schedule)
    assert list(phases) == ["whole", "depths", "widths"]
    assert [epochs for epochs, _ in phases.values()] == [2, 3, 3]
    (whole,), (deepest, shallowest, *others) = phases["whole"][1], phases["depths"][1]
    assert whole == deepest == 0.9
    widths = dict.fromkeys(here.groups.sizes, 0.9)
    assert shallowest == {**widths, "deep.1": 0.0}
    assert all({**each, "deep.1": 0.0} == shallowest for each in others)
    assert phases["widths"][1] == list(member._draw_step(here, np.random.default_rng(0)))
    phases.clear()
    replace(member, depth=False)._train(here, schedule)
    assert {name: epochs for name, (epochs, _) in phases.items()} == {"whole": 4, "widths": 4}


def test_channels_are_sorted_by_their_weights_and_compute_the_same():
    here = context()
    made = slimming.sort_channels(here, here.model)
    with torch.no_grad():
        assert torch.allclose(made(EXAMPLE), here.model(EXAMPLE), atol=1e-5)
    assert not torch.equal(made.first[0].weight, here.model.first[0].weight)
    for scores in rank(made, here.groups, "l1", images=None, labels=None, rng=None).values():
        assert torch.equal(scores, scores.sort(descending=True).values)


@pytest.mark.slow
def test_progressive_training_changes_the_weights_and_keeps_networks_nested():
    here = context()
    member = OnceForAll(keep_ratios=(1.0, 0.5), epochs=2, candidates=2, training="progressive")
    family = member.build(here.model, here.data)
    joint = replace(member, training="joint").build(here.model, here.data)
    assert not np.array_equal(family.shared, joint.shared)
    assert all(list(counts) == sorted(counts) for counts in family.widths.values())
    small, whole = (extract(family, which) for which in (0, 1))
    rows = len(small.first[0].weight)
    assert torch.equal(small.first[0].weight, whole.first[0].weight[:rows])


@pytest.mark.slow
def test_networks_of_uneven_widths_are_nested_and_cost_no_more_than_even_ones():
    here = context()
    member = OnceForAll(keep_ratios=(1.0, 0.5), epochs=1, candidates=4)
    family = member.build(here.model, here.data)
    assert all(list(counts) == sorted(counts) for counts in family.widths.values())
    for which, share in enumerate((0.5, 1.0)):
        even = cut(here.model, here.groups, prefix_of(here, share))
        most = count_cost(even, *factory.SIZE).macs
        assert 0.8 * most <= count_cost(extract(family, which), *factory.SIZE).macs <= most
    half, whole = (dict.fromkeys(here.groups.sizes, share) for share in (0.5, 1.0))
    drawn = list(member._candidates(here, half, whole, np.random.default_rng(0)))
    assert len(drawn) == 4
    assert all(len(set(shares.values())) > 1 for shares in drawn)
