"""Early exit: thresholds by shares of frames, costs of reached layers, predictions of confident exits."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.datasets.frames import Frames
from driftlab.platform.core.records import Passes, Reply
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import early_exit
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.early_exit import EarlyExit, EarlyExitFamily
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_j, inference_s, task_cost

FROZEN, PHONE = Member("adaptation", "frozen"), hardware.find("phone-hi")
RNG = np.random.default_rng(0)
SURE = RNG.permuted(np.tile(np.linspace(0.01, 0.99, 200)[:, None], (1, 3)), axis=0)


@pytest.fixture(scope="module")
def untrained():
    """Return a member and its family with untrained exits."""
    member = EarlyExit(exits=3, stage_epochs=0)
    return member, member.build(model(), factory.problem())


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
def test_the_given_share_of_the_frames_uses_each_exit(shares: tuple[float, ...]):
    thresholds = early_exit.place_thresholds(SURE, shares)
    assert early_exit.leaving_shares(SURE, thresholds) == pytest.approx(shares, abs=0.006)


@pytest.mark.slow
def test_shares_form_a_series_and_cost_rises_with_its_ratio(untrained):
    assert early_exit.geometric_shares(3, 2.0) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    network = untrained[1].network
    costs = [
        early_exit.mean_cost(network, factory.SIZE, early_exit.geometric_shares(3, ratio)).macs for ratio in (0.2, 1, 5)
    ]
    assert costs == sorted(costs)
    whole = count_cost(network, *factory.SIZE)
    assert early_exit.mean_cost(network, factory.SIZE, np.array([0.0, 0.0, 1.0])) == whole
    first = early_exit.mean_cost(network, factory.SIZE, np.array([1.0, 0.0, 0.0]))
    alone = [layer.macs for layer in whole.layers if layer.name.startswith(("stem", "stages.0.", "heads.0."))]
    assert first.macs == sum(alone)


@pytest.mark.slow
def test_a_frame_is_predicted_by_the_first_confident_exit():
    member = EarlyExit(exits=3, stage_epochs=1)
    family = member.build(model(), factory.problem())
    network = member.select(family, Budget(variant=2))
    images = factory.some_images(16)
    with torch.no_grad():
        outputs = network.outputs(images)
        for thresholds, expected in (((0.0, 0.0), 0), ((2.0, 0.0), 1), ((2.0, 2.0), 2)):
            network.thresholds = thresholds
            assert torch.equal(network(images), outputs[expected])
        sure = [early_exit.confidence(output) for output in outputs]
        network.thresholds = (float(sure[0].median()), 2.0)
        mixed = torch.where((sure[0] >= sure[0].median())[:, None], outputs[0], outputs[2])
        assert torch.equal(network(images), mixed)


@pytest.fixture(scope="module")
def halved(untrained):
    """Return frames, a family whose first exit half of them use, its exits and the cost up to each."""
    family = copy.deepcopy(untrained[1])
    images = np.random.default_rng(0).integers(0, 256, (8, *factory.SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        sure = early_exit.confidence(family.network.outputs(to_input(images))[0]).numpy()
        family.network.heads[2].answer.bias[3] += 9.0  # another prediction than the first exit's
    family = replace(family, thresholds=np.tile([np.median(sure), 2.0], (len(family.thresholds), 1)))
    left = [0 if one else 2 for one in sure >= np.median(sure)]
    assert sorted(left) == [0] * 4 + [2] * 4
    whole = count_cost(family.network, *factory.SIZE)
    passed = ("stem", "stages.0.", "heads.0."), ("stem", "stages.0.", "heads.0.", "stages.1.", "heads.1.")
    layers = [tuple(layer for layer in whole.layers if layer.name.startswith(names)) for names in passed]
    costs = [replace(whole, macs=sum(one.macs for one in each), layers=each) for each in layers]
    return images, family, left, (*costs, whole)


def node_of(member: EarlyExit, family: EarlyExitFamily, adaptation: Member = FROZEN, **spec: Any) -> AppNode:
    settings = (("exits", 3), ("stage_epochs", 0))
    student = StudentSpec(
        "tiny_staged", factory.CLASSES, *factory.SIZE, adaptation, Member("scaling", "early_exit", settings), 0
    )
    mean = early_exit.mean_cost(family.network, factory.SIZE, np.array([0.5, 0.0, 0.5]))
    return AppNode(AppNodeConfig("cam", "frames", student, PHONE, mean, **spec), member.store(family))


@pytest.mark.slow
def test_a_frame_takes_the_time_of_the_exit_at_which_it_leaves(untrained, halved):
    """Half of the frames use the first exit: each is charged for the layers that it passed only."""
    images, family, left, costs = halved
    assert [early_exit.reached_cost(costs[2], [exit_]) for exit_ in range(3)] == list(costs)
    node = node_of(untrained[0], family)
    times_s = np.arange(len(images), dtype=np.float64)
    predictions = predict(untrained[0].select(family, Budget()), images, task=CLASSIFICATION)
    truth = np.where(np.arange(8) < 4, predictions, (predictions + 1) % factory.CLASSES)
    reply = node.run_stream(Frames(times_s, images, np.zeros(8, np.int32), truth), truth, 9.0, ((0.0, 0.5),))
    assert list(reply.rows["frames"][0]["score_frame"]) == [1.0] * 4 + [0.0] * 4
    assert [int(one == 3) for one in predictions] == [one // 2 for one in left]
    latencies = 1e3 * np.array([inference_s(costs[exit_], PHONE, share=0.5) for exit_ in left])
    assert reply.rows["frames"][0]["latency_ms"] == pytest.approx(latencies)
    assert reply.facts.joules["inference"] == pytest.approx(sum(inference_j(costs[exit_], PHONE) for exit_ in left))


@pytest.mark.slow
@pytest.mark.parametrize("switched", [False, True])
def test_a_frame_of_a_learner_takes_the_time_of_its_exit_too(untrained, halved, switched: bool):
    """The member predicts frame by frame; its training batch is never complete."""
    images, family, left, costs = halved
    tent = Member("adaptation", "tent", (("stream_batch", 9), ("predict_on", "frame"), ("variant", "run")))
    node = node_of(untrained[0], family, tent)
    if switched:
        node.switch(2)
    reply = watch(node, images)
    latencies = 1e3 * np.array([inference_s(costs[exit_], PHONE, share=0.5) for exit_ in left])
    assert reply.rows["frames"][0]["latency_ms"] == pytest.approx(latencies)
    assert reply.facts.joules["inference"] == pytest.approx(sum(inference_j(costs[exit_], PHONE) for exit_ in left))


@pytest.mark.slow
def test_a_batch_of_a_learner_takes_each_stage_for_the_frames_that_reach_it(untrained, halved):
    """Half of the frames use the first exit: later layers compute four frames; weights are read once."""
    images, family, _, costs = halved
    tent = Member("adaptation", "tent", (("stream_batch", 8), ("variant", "run"), ("learning_rate", 0.0)))
    reply = watch(node_of(untrained[0], family, tent), images)
    first, rest = costs[0], replace(costs[2], layers=costs[2].layers[len(costs[0].layers) :])
    assert {layer.name for layer in first.layers}.isdisjoint(layer.name for layer in rest.layers)
    batch_s = inference_s(first, PHONE, batch=8) + inference_s(rest, PHONE, batch=4)
    assert reply.rows["frames"][0]["latency_ms"][-1] == pytest.approx(2e3 * batch_s, rel=1e-5)


@pytest.mark.slow
def test_a_training_batch_costs_the_stages_that_its_frames_reach(untrained, halved):
    """If all frames use the first exit, no layer behind it is trained or charged."""
    images, family, _, costs = halved
    early = replace(family, thresholds=np.zeros_like(family.thresholds))
    tent = Member("adaptation", "tent", (("stream_batch", 8),))
    works = []
    for each in (early, replace(family, thresholds=np.full_like(family.thresholds, 2.0))):
        reply = watch(node_of(untrained[0], each, tent), images)
        assert reply.rows["adaptations"][0]["skipped"] == [None]
        works.append(reply.rows["adaptations"][0]["isolated_s"][0])
    norms = [layer.name for layer in costs[0].layers if layer.kind == "BatchNorm2d"]
    work = Passes(backward=(8,), trained=tuple(norms))
    assert works[0] == pytest.approx(task_cost(costs[0], PHONE, work).isolated_s)
    assert works[1] > 1.5 * works[0]


def test_copies_of_a_network_write_into_the_log_of_the_original(halved):
    network = halved[1].network
    with early_exit.record_exits(network) as exits:
        copy.deepcopy(network)(to_input(halved[0]))
    network(to_input(halved[0]))
    assert len(exits) == 8


def watch(node: AppNode, images: Any) -> Reply:
    """Run eight frames, one per second, on half of the processor, and return the results."""
    times_s, truth = np.arange(len(images), dtype=np.float64), np.zeros(len(images), np.int64)
    return node.run_stream(Frames(times_s, images, np.zeros(8, np.int32), truth), truth, 90.0, ((0.0, 0.5),))


def model() -> torch.nn.Module:
    return build("tiny_staged", factory.CLASSES, seed=0).eval()
