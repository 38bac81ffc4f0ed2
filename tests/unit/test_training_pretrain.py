"""Pre-training: equal bits for equal recipes, frames of all workloads, seeds that no experiment uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driftlab.datasets.catalogue import WORKLOADS
from driftlab.datasets.streets.presets import CAR, PERSON
from driftlab.platform.core.metrics import confusion, miou
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.digest import digest
from driftlab.platform.networks.predict import load, predict, state_of
from driftlab.platform.networks.tasks.tasks import Segmentation
from driftlab.platform.networks.training import pretrain
from driftlab.platform.networks.training.artifacts import Recipe

SHORT = Recipe("half", height=24, width=32, steps=3, batch=4)


def test_the_same_recipe_gives_the_same_bits_and_another_seed_others():
    first, same = pretrain.pretrain(SHORT), pretrain.pretrain(SHORT)
    other = pretrain.pretrain(Recipe("half", height=24, width=32, steps=3, batch=4, seed=1))
    assert digest(first) == digest(same) != digest(other)


@pytest.mark.slow
def test_half_precision_trains_nearly_the_same_and_has_a_separate_cache():
    recipe = replace(SHORT, steps=30)
    halved = replace(recipe, precision="bfloat16")
    whole, half = pretrain.pretrain(recipe), pretrain.pretrain(halved)
    begun = state_of(build("half", recipe.classes, seed=pretrain.seed_for(recipe.seed, "pretrain", "weights")))
    learned, apart = (
        np.sqrt(sum(np.square(whole[name] - other[name]).sum() for name in whole)) for other in (begun, half)
    )
    assert 0 < apart < learned / 3
    assert all(value.dtype == whole[name].dtype for name, value in half.items())
    assert len({recipe.key(), halved.key(), replace(recipe, device="cuda").key()}) == 3


@pytest.mark.slow
def test_pretraining_frames_cover_all_workloads_with_separate_seeds(monkeypatch):
    opened = []
    real = pretrain.open_stream

    def note(name, *, seed, **rest):
        opened.append((name, seed))
        return real(name, seed=seed, **rest)

    monkeypatch.setattr(pretrain, "open_stream", note)
    frames = pretrain.draw_pretraining_frames(Recipe("half", height=24, width=32, steps=10, batch=8), 80)
    assert len(frames.images) == len(frames.labels) == 80
    assert {name for name, _ in opened} == {name for name in WORKLOADS if name.startswith("streets/")}
    assert len({seed for _, seed in opened}) == len(opened) == 20
    assert min(seed for _, seed in opened) > 1_000_000  # larger than usual seeds of experiments


@pytest.mark.slow
def test_pretraining_frames_use_the_parameters_of_the_recipe():
    recipe = Recipe("half", height=24, width=32, workloads="city", steps=10, batch=8)
    usual = pretrain.draw_pretraining_frames(recipe, 32)
    empty = pretrain.draw_pretraining_frames(replace(recipe, lessons=(("crowd", 0.0), ("passers", 0.0))), 32)
    assert np.isin(usual.labels, (PERSON, CAR)).any() and not np.isin(empty.labels, (PERSON, CAR)).any()


def test_no_steps_leave_the_random_weights():
    weights = pretrain.pretrain(Recipe("half", steps=0))
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in state_of(build("half", 8, seed=0)).items()
    }


@pytest.mark.parametrize("classes", [3, 8])
def test_a_fresh_head_keeps_the_trained_features(classes):
    """Also for the number of classes of the training frames."""
    learned = pretrain.pretrain(SHORT)
    own, same = (pretrain.pretrain(replace(SHORT, classes=classes, fresh_head=True)) for _ in range(2))
    assert digest(own) == digest(same)
    assert own["head.weight"].shape[0] == classes
    differs = {name for name in learned if not np.array_equal(own[name], learned[name])}
    assert differs == {"head.weight", "head.bias"}


def test_a_mirrored_frame_keeps_its_truth(monkeypatch):
    labels = np.random.default_rng(0).integers(0, 200, (5, 6, 8), dtype=np.uint8)
    frames = pretrain.LabelledFrames(np.repeat(labels[..., None], 3, axis=3), labels)
    mirrored = []

    def compare(task, images, truth):
        shown = (images[:, 0].detach() * 63.75 + 127.5).round().long()
        assert np.array_equal(shown.numpy(), truth)
        mirrored.append(not any(np.array_equal(truth[0], label) for label in labels))
        return images.sum()

    monkeypatch.setattr(Segmentation, "loss", compare)
    scale = torch.nn.Conv2d(3, 3, 1, bias=False)
    torch.nn.init.dirac_(scale.weight)
    pretrain._train(scale, Recipe("half", height=6, width=8, steps=12, batch=2, lr=0.0), frames)
    assert set(mirrored) == {True, False}


@pytest.mark.slow
def test_training_raises_the_score():
    recipe = Recipe("tiny", height=32, width=48, steps=60, batch=8)
    stream = pretrain.open_stream("streets/driving_la", seed=0, height=32, width=48, fps=1.0, duration_s=60.0)
    frames = stream.at(np.arange(20.0))
    scores = []
    for weights in (pretrain.pretrain(Recipe("tiny", steps=0)), pretrain.pretrain(recipe)):
        model = build("tiny", 8, seed=0)
        load(model, weights)
        scores.append(float(miou(confusion(predict(model, frames.images), frames.labels, 8))))
    assert scores[1] > 2 * scores[0]
