"""A GPU computes the same as the processor, up to the order of sums; skipped without a GPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.adaptation import masks
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.pruning.family import extract
from driftlab.platform.networks.training.artifacts import Recipe
from driftlab.platform.networks.training.descent import Descent
from driftlab.platform.networks.training.pretrain import pretrain
from driftlab.platform.scaling import growing
from driftlab.platform.scaling.nested import Nested

GPU = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]


@pytest.fixture(autouse=True)
def whole_floats(monkeypatch):
    """Keep convolutions from rounding their factors to ten bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def training_batch() -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Draw images and labels; return them with the random generator."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 16, 24, 3), dtype=np.uint8)
    return images, rng.integers(0, 4, (5, 16, 24), dtype=np.uint8), rng


@pytest.mark.parametrize("strategy", ["gradient_guided", "random", "first", "last", "first_last", "probe", "full"])
def test_a_phase_of_distill(strategy):
    """The second of two phases starts from the first one's state; of `probe` a few choices may differ."""
    images, labels, rng = training_batch()
    member = Distill(fraction=0.05, strategy=strategy, iterations=3, epsilon=1e-3)
    theirs, ours = build("half", 4, seed=0), build("half", 4, seed=0).to(GPU)
    state = member.adapt(theirs, member.prepare(theirs), Batch(images, labels, rng), Phase()).state
    begun = vector.read(theirs)
    vector.write(ours, begun)
    (there, after_there), (here, after_here) = (
        (member.adapt(model, state, Batch(images, labels, np.random.default_rng(1)), Phase()), vector.read(model))
        for model in (theirs, ours)
    )
    assert next(ours.parameters()).device.type == GPU
    assert after_here[~here.changed].tobytes() == begun[~here.changed].tobytes()
    assert (after_here[here.changed] != begun[here.changed]).mean() > 0.5
    if strategy == "probe":
        assert (here.changed == there.changed).mean() > 0.99
    else:
        assert here.changed.sum() == masks.budget(1.0 if strategy == "full" else 0.05, len(begun))
        assert np.array_equal(here.changed, there.changed)
        assert np.allclose(after_here, after_there, atol=1e-5)
    assert np.allclose(here.losses, there.losses, rtol=1e-3)


def test_training_everything_is_torch_s_adam_bit_for_bit(monkeypatch):
    """Over two phases; torch gets the recorded gradients, because their sums may differ in another run."""
    met, places, step = [], set(), Descent.step

    def noted(walk, gradient):
        met.append(gradient.clone())
        places.update(each.device.type for each in (gradient, walk.weights, *walk._moments))
        step(walk, gradient)

    monkeypatch.setattr(Descent, "step", noted)
    ours = build("half", 4, seed=0).to(GPU)
    theirs, member, (images, labels, rng) = copy.deepcopy(ours), Distill(fraction=1.0, iterations=100), training_batch()
    state = member.prepare(ours)
    for _ in range(2):
        state = member.adapt(ours, state, Batch(images, labels, rng), Phase()).state
    parameters = list(theirs.parameters())
    adam = torch.optim.Adam(parameters, lr=member.learning_rate, foreach=False)
    for gradient in met:
        parts = gradient.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        adam.step()
    assert (len(met), places) == (200, {GPU})
    assert vector.read(ours).tobytes() == vector.read(theirs).tobytes()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_pre_training(precision):
    """After a few steps, before small differences have grown."""
    recipe = Recipe("half", height=24, width=32, steps=3, batch=4, precision=precision)
    there, here = pretrain(recipe), pretrain(replace(recipe, device=GPU))
    assert all(np.allclose(here[name], there[name], atol=2e-3) for name in there)


@pytest.mark.parametrize("name", ["plain", "residual"])
def test_a_nested_family(name):
    """Networks that are pruned, sorted and restored without training equal the processor's, bit by bit."""
    member = Nested(keep_ratios=factory.KEEP, ranking="l1", accuracy_loss=1.0, prune_epochs=0, grow_epochs=0)
    there, here = (member.build(factory.networks()[name].to(device), factory.problem()) for device in ("cpu", GPU))
    assert here.widths == there.widths
    assert here.shared.tobytes() == there.shared.tobytes()
    assert np.allclose(here.val_accuracies, there.val_accuracies, atol=0.05)


@pytest.mark.parametrize("name", ["plain", "residual"])
def test_finished_members_of_a_nested_family_are_unchanged(name, monkeypatch):
    descendants, store = [], growing.store_descendants

    def noted(*given):
        descendants.extend(given[-1])
        return store(*given)

    monkeypatch.setattr(growing, "store_descendants", noted)
    member = Nested(keep_ratios=factory.KEEP, accuracy_loss=1.0, prune_epochs=1, grow_epochs=1)
    family = member.build(factory.networks()[name].to(GPU), factory.problem())
    assert len(descendants) == len(family) == len(factory.KEEP)
    for which, finished in enumerate(descendants):
        again = extract(family, which).state_dict()
        for tensor_name, tensor in finished.state_dict().items():
            assert tensor.device.type == GPU
            assert torch.equal(again[tensor_name], tensor)
