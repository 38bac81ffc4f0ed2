"""Probing of blocks, placement of exits, and critical stages."""

from __future__ import annotations

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.paths import CRITICAL
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.scaling.branches import Branches
from driftlab.platform.scaling.probing import StagePlan, block_macs, critical_stages, place_exits


def test_exits_are_placed_by_accuracy_per_operation_at_a_distance():
    scores, macs = [0.3, 0.35, 0.6, 0.62, 0.7, 0.71], [10, 10, 10, 10, 10, 50]
    assert place_exits(scores, macs, 3) == (0, 2, 5)
    assert place_exits(scores, macs, 9) == (0, 2, 4, 5)  # blocks 1 and 3 are closer than 12 % to another exit
    assert place_exits(scores, [10, 10, 10, 10, 10, 5], 2) == (0, 5)
    assert place_exits([0.5], [10], 4) == (0,)


def test_the_stages_that_gain_most_are_critical_and_get_few_operators():
    assert critical_stages([0.1, 0.2, 0.7, 0.8], (1, 2, 3)) == (False, True, False)
    assert critical_stages([0.1], (0,)) == (False,)
    plan = StagePlan((1, 2), (False, True))
    assert plan.operators(SPACES["paper480"]) == (SPACES["paper480"][0], CRITICAL)


@pytest.mark.slow
def test_a_probed_network_has_separate_stages_and_is_restored_from_plain_arrays():
    model = build("tiny_staged", factory.CLASSES, seed=0).eval()
    member = Branches(exits=3, placement="probed", probe_epochs=1, stage_epochs=0, operator_epochs=0, path_epochs=0)
    family = member.build(model, factory.problem())
    assert family.plan is not None
    ends = family.plan.ends
    assert len(ends) == family.branched.space.stages <= 3
    again = member.restore(model, member.store(family), factory.SIZE)
    assert again.plan == family.plan
    assert member.profile(again, factory.SIZE) == member.profile(family, factory.SIZE)
    chain = chain_of(model, torch.zeros(1, 3, *factory.SIZE), 4)
    blocks = [block for stage in chain.stages for block in stage]
    sizes = [len(stage) for stage in chain_of(model, torch.zeros(1, 3, *factory.SIZE), ends).stages]
    assert sizes == np.diff(ends, prepend=-1).tolist()
    stem = sum(layer.macs for layer in count_cost(chain.stem, *factory.SIZE).layers)
    whole = sum(layer.macs for layer in count_cost(model, *factory.SIZE).layers)
    assert sum(block_macs(chain, blocks)) == pytest.approx(whole - stem, rel=0.01)
