"""Variants of a stage from its own blocks: pruned, or merged into one block."""

from __future__ import annotations

import pytest
import scaling_factory as factory
import torch

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.chain import Chain, chain_of
from driftlab.platform.networks.paths import PathSpace
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.scaling.branches import Branches, make_stage, pruned_block

EXAMPLE = torch.randn(1, 3, *factory.SIZE)


def chain(network: str = "tiny_staged") -> Chain:
    return chain_of(build(network, factory.CLASSES, seed=0).eval(), EXAMPLE, 4)


def test_a_pruned_block_keeps_the_inner_filters_of_the_largest_weights():
    block = chain().stages[1][1]
    whole, small = block.base(), pruned_block(block, 0.4)
    weights, kept = whole.first[0].weight, small.first[0].weight
    size = round(0.4 * len(weights))
    strongest = sorted((whole.first[0].weight.abs().sum(dim=(1, 2, 3))).argsort(descending=True)[:size].tolist())
    assert torch.equal(kept, weights[strongest])
    assert small.second[0].weight.shape == (block.outputs, size, 3, 3)
    x = torch.randn(2, block.inputs, *block.before)
    assert small(x).shape == whole(x).shape


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tiny_staged", "mobilenet_v3_small", "half"])
def test_every_variant_has_the_shape_of_its_stage(network: str):
    made = chain(network)
    x = made.stem(made.expects.convert(EXAMPLE))
    for which in range(len(made.stages)):
        base = make_stage(made, which, None).eval()(x)
        for name in ("sparse60", "merged"):
            assert make_stage(made, which, name).eval()(x).shape == base.shape
        x = base


def test_a_merged_stage_is_its_first_block_where_that_has_the_shape_of_all():
    made = chain()
    merged = make_stage(made, 2, "merged")
    assert len(merged) == 1
    assert torch.equal(merged[0].first[0].weight, made.stages[2][0].base().first[0].weight)


@pytest.mark.slow
def test_families_of_pruned_blocks_are_restored_from_plain_arrays():
    model, data = build("tiny_staged", factory.CLASSES, seed=0).eval(), factory.problem()
    member = Branches(space="lego", exits=2, stage_epochs=0, operator_epochs=0, path_epochs=0)
    family = member.build(model, data)
    assert len(family) == len(PathSpace(SPACES["lego"][:2])) == 20
    again = member.restore(build("tiny_staged", factory.CLASSES, seed=1).eval(), member.store(family), factory.SIZE)
    assert member.profile(again, factory.SIZE) == member.profile(family, factory.SIZE)
    macs = {one.name: one.cost.macs for one in member.profile(family, factory.SIZE)}
    assert macs["sparse80"] < macs["sparse60"] < macs["sparse40"] < macs["base"]
