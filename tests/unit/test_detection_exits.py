"""Detection exits: the output grid of the network, and the confidence of possible centres."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.box_head import BoxHead, BoxOutput, box_confidence
from driftlab.platform.networks.branched import BoxExit, Branched, MapExit, branch
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.light import TRUNKS, build_like
from driftlab.platform.networks.paths import PathSpace
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.networks.tasks.boxes import SIDES
from driftlab.platform.networks.tasks.tasks import DETECTION
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import Branches
from driftlab.platform.scaling.early_exit import EarlyExit
from driftlab.platform.scaling.probing import LightExit

CLASSES, SIZE = 3, (16, 24)
DETECTORS = ("tiny_detector", "tiny_mobile_detector")


def branched(name: str, size: tuple[int, int] = SIZE) -> Branched:
    chain = chain_of(build(name, CLASSES, seed=0).eval(), torch.zeros(1, 3, *size), 3)
    return branch(chain, PathSpace(SPACES["tiny"][:3]))


def labelled_frames(count: int, seed: int) -> LabelledFrames:
    """Return frames with one white box of a third of the frame's size on a dark background."""
    rng = np.random.default_rng(seed)
    images, truth = np.full((count, *SIZE, 3), 40, dtype=np.uint8), np.empty(count, dtype=object)
    for row in range(count):
        left, top = int(rng.integers(0, SIZE[1] - 8)), int(rng.integers(0, SIZE[0] - 6))
        images[row, top : top + 6, left : left + 8] = 230
        truth[row] = np.array([[1, left, top, left + 8, top + 6]], dtype=np.float32)
    return LabelledFrames(images, truth)


@pytest.fixture(scope="module")
def problem() -> DataSplits:
    return DataSplits(DETECTION, CLASSES, labelled_frames(160, 0), labelled_frames(40, 1), labelled_frames(40, 2), 0)


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("size", [SIZE, (18, 26), (17, 23), (17, 64), (27, 48), (45, 80), (135, 240)])
def test_every_path_has_the_output_grid_of_the_network(name: str, size: tuple[int, int]):
    images, made = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)), branched(name, size)
    own = build(name, CLASSES, seed=0).eval()(images)
    for which in range(made.space.stages):
        output = made.network(made.space.decode(made.space.whole(which)))(images)
        assert output.shape == own.shape
    assert {type(head) for head in made.heads} == {BoxExit}


@pytest.mark.parametrize("name", DETECTORS)
def test_untrained_exits_predict_no_boxes(name: str):
    output = branched(name).network((0,))(torch.zeros(1, 3, *SIZE))
    assert float(output[:, :-SIDES].detach().sigmoid().max()) < 0.1
    assert [len(found) for found in DETECTION.predictions(output.detach(), *SIZE)] == [0]


@pytest.mark.parametrize("name", DETECTORS)
def test_probes_of_boxes_have_the_head_of_their_exits(name: str):
    chain = chain_of(build(name, CLASSES, seed=0).eval(), torch.zeros(1, 3, *SIZE), 3)
    (block, *_), images = chain.stages[-1], torch.zeros(1, 3, *SIZE)
    probe = LightExit(block, chain)
    assert isinstance(probe.head, BoxHead)
    assert probe(torch.zeros(1, block.outputs, *block.after), images).shape[1:] == chain.output


@pytest.mark.parametrize("network", TRUNKS)
@pytest.mark.parametrize("size", [(32, 48), (45, 80)])
def test_a_light_network_has_the_box_output_of_detectors(network: str, size: tuple[int, int]):
    model, images = build("tiny_detector", CLASSES, seed=0).eval(), torch.zeros(1, 3, *size)
    light = build_like(network, model, images)
    assert isinstance(light, BoxOutput)
    output = light(images).detach()
    assert output.shape == model(images).shape
    assert float(output[:, :-SIDES].sigmoid().max()) < 0.1


def test_pixels_keep_their_maps():
    chain = chain_of(build("tiny_mobile_segmenter", 5, seed=0).eval(), torch.zeros(1, 3, *SIZE), 3)
    assert {type(head) for head in branch(chain, PathSpace(SPACES["tiny"][:3])).heads} == {MapExit}


def test_a_feature_place_predicts_the_output_places_that_it_covers():
    head, features, images = BoxHead(2, CLASSES + SIDES, 2), torch.zeros(1, 2, 4, 6), torch.zeros(1, 3, *SIZE)
    before = head(features, images)
    features[0, :, 1, 2] = 5.0
    changed = (head(features, images) - before).abs().sum(dim=(0, 1)) > 0
    assert set(map(tuple, changed.nonzero().tolist())) == {(2, 4), (2, 5), (3, 4), (3, 5)}


def test_a_map_has_the_confidence_of_its_possible_centres():
    """Sides, places next to a peak and places without a centre are ignored."""
    likely = torch.full((4, CLASSES, 8, 8), 0.001)
    likely[1, 0, 2, 2], likely[1, 0, 2, 3] = 0.9, 0.5
    likely[2, 0, 2, 2], likely[2, 1, 6, 6] = 0.9, 0.2
    likely[3, 0, 2, 2] = 0.55
    sides = torch.randn(4, SIDES, 8, 8, generator=torch.Generator().manual_seed(0))
    assert box_confidence(torch.cat([likely.logit(), sides], dim=1)).tolist() == pytest.approx([1.0, 0.9, 0.85, 0.55])


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_exits_are_trained_on_boxes_and_restored(problem: DataSplits, name: str):
    member = Branches(exits=2, stage_epochs=8, operator_epochs=1, path_epochs=1, learning_rate=0.05, batch=16)
    family = member.build(build(name, CLASSES, seed=0).eval(), problem)
    exits = [family.test_accuracies[family.branched.space.encode((2,) * count)] for count in (1, 2)]
    assert min(exits) > 0.6
    again = member.restore(build(name, CLASSES, seed=1).eval(), member.store(family), SIZE)
    images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    ours, theirs = (member.select(one, Budget(variant=len(family) - 1))(images) for one in (family, again))
    assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_frames_exit_where_centres_are_confident(problem: DataSplits):
    member = EarlyExit(exits=2, stage_epochs=8, batch=16)
    family = member.build(build("tiny_detector", CLASSES, seed=0).eval(), problem)
    assert family.leaving[:, 0] == pytest.approx([1 / 1.2, 1 / 1.5, 0.5, 1 / 3, 1 / 6], abs=0.03)
    network = member.select(family, Budget(variant=2))
    with torch.no_grad():
        first, last = network.outputs(torch.randn(8, 3, *SIZE, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(network.confidence(first), box_confidence(first))
    assert first.shape == last.shape and min(family.test_accuracies) > 0.6
