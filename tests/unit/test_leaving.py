"""Frames that leave a network early: thresholds by shares, costs by what is reached, answers by sure exits."""

from __future__ import annotations

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.networks import leaving
from driftlab.platform.networks.account import count_cost
from driftlab.platform.networks.zoo import build
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.early_exit import EarlyExit

RNG = np.random.default_rng(0)
SURE = RNG.permuted(np.tile(np.linspace(0.01, 0.99, 200)[:, None], (1, 3)), axis=0)


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
def test_the_given_shares_of_the_frames_leave_at_each_exit(shares: tuple[float, ...]):
    thresholds = leaving.place_thresholds(SURE, shares)
    assert leaving.leaving_shares(SURE, thresholds) == pytest.approx(shares, abs=0.006)


@pytest.mark.slow
def test_shares_form_a_series_and_cost_rises_with_its_ratio():
    assert leaving.geometric_shares(3, 2.0) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    network = EarlyExit(exits=3, stage_epochs=0).build(model(), factory.problem()).network
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


def model() -> torch.nn.Module:
    return build("tiny_staged", factory.CLASSES, seed=0).eval()
