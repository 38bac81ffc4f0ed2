"""Frames that leave a network early: thresholds by shares, costs by what is reached, answers by sure exits."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.datasets.frames import Frames
from driftlab.platform.core.catalogue import Member
from driftlab.platform.networks import leaving
from driftlab.platform.networks.account import count_cost
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.zoo import build
from driftlab.platform.nodes.application import Application
from driftlab.platform.nodes.specs import AppNodeSpec, StudentSpec
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.early_exit import EarlyExit
from driftlab.platform.tasks.tasks import CLASSIFICATION
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_j, inference_s

FROZEN, PHONE = Member("adaptation", "frozen"), hardware.find("phone-hi")
RNG = np.random.default_rng(0)
SURE = RNG.permuted(np.tile(np.linspace(0.01, 0.99, 200)[:, None], (1, 3)), axis=0)


@pytest.fixture(scope="module")
def untrained():
    """Return a member and its family, whose exits learned nothing."""
    member = EarlyExit(exits=3, stage_epochs=0)
    return member, member.build(model(), factory.problem())


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
def test_the_given_shares_of_the_frames_leave_at_each_exit(shares: tuple[float, ...]):
    thresholds = leaving.place_thresholds(SURE, shares)
    assert leaving.leaving_shares(SURE, thresholds) == pytest.approx(shares, abs=0.006)


@pytest.mark.slow
def test_shares_form_a_series_and_cost_rises_with_its_ratio(untrained):
    assert leaving.geometric_shares(3, 2.0) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    network = untrained[1].network
    costs = [leaving.mean_cost(network, factory.SIZE, leaving.geometric_shares(3, ratio)).macs for ratio in (0.2, 1, 5)]
    assert costs == sorted(costs)
    whole = count_cost(network, *factory.SIZE)
    assert leaving.mean_cost(network, factory.SIZE, np.array([0.0, 0.0, 1.0])) == whole
    first = leaving.mean_cost(network, factory.SIZE, np.array([1.0, 0.0, 0.0]))
    alone = [layer.macs for layer in whole.layers if layer.name.startswith(("stem", "stages.0.", "heads.0."))]
    assert first.macs == sum(alone)


@pytest.mark.slow
def test_a_frame_is_answered_by_the_first_exit_that_is_sure():
    member = EarlyExit(exits=3, stage_epochs=1)
    family = member.build(model(), factory.problem())
    network = member.select(family, Budget(variant=2))
    images = factory.some_images(16)
    with torch.no_grad():
        outputs = network.outputs(images)
        for thresholds, expected in (((0.0, 0.0), 0), ((2.0, 0.0), 1), ((2.0, 2.0), 2)):
            network.thresholds = thresholds
            assert torch.equal(network(images), outputs[expected])
        sure = [leaving.confidence(output) for output in outputs]
        network.thresholds = (float(sure[0].median()), 2.0)
        mixed = torch.where((sure[0] >= sure[0].median())[:, None], outputs[0], outputs[2])
        assert torch.equal(network(images), mixed)


@pytest.mark.slow
def test_a_frame_takes_the_time_of_the_exit_at_which_it_leaves(untrained):
    """Thresholds at which half of the frames leave first: each pays for the layers that it passed, and no others."""
    member, family = untrained[0], copy.deepcopy(untrained[1])
    images = np.random.default_rng(0).integers(0, 256, (8, *factory.SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        sure = leaving.confidence(family.network.outputs(to_input(images))[0]).numpy()
        family.network.heads[2].answer.bias[3] += 9.0  # another answer than that of the first exit
    family = replace(family, thresholds=np.tile([np.median(sure), 2.0], (len(family.thresholds), 1)))
    costs, whole = leaving.exit_costs(family.network, factory.SIZE), count_cost(family.network, *factory.SIZE)
    assert costs[2] == whole and costs[0].macs < costs[1].macs < whole.macs
    settings = (("exits", 3), ("stage_epochs", 0))
    student = StudentSpec(
        "tiny_staged", factory.CLASSES, *factory.SIZE, FROZEN, Member("scaling", "early_exit", settings), 0
    )
    node = Application(AppNodeSpec("cam", "frames", student, PHONE, whole), member.store(family))
    times_s = np.arange(len(images), dtype=np.float64)
    answers = predict(member.select(family, Budget()), images, task=CLASSIFICATION)
    truth = np.where(np.arange(8) < 4, answers, (answers + 1) % factory.CLASSES)
    told = node.watch(Frames(times_s, images, np.zeros(8, np.int32), truth), truth, 9.0, ((0.0, 0.5),))
    assert list(told.rows["frames"][0]["score_frame"]) == [1.0] * 4 + [0.0] * 4
    left = [0 if one else 2 for one in sure >= np.median(sure)]
    assert sorted(left) == [0] * 4 + [2] * 4
    assert [int(one == 3) for one in answers] == [one // 2 for one in left]
    latencies = 1e3 * np.array([inference_s(costs[exit_], PHONE, share=0.5) for exit_ in left])
    assert told.rows["frames"][0]["latency_ms"] == pytest.approx(latencies)
    assert told.facts.joules["answering"] == pytest.approx(sum(inference_j(costs[exit_], PHONE) for exit_ in left))


def model() -> torch.nn.Module:
    return build("tiny_staged", factory.CLASSES, seed=0).eval()
