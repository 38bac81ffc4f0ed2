"""Prediction against a plain loop; weights keep every bit in a round trip through arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from driftlab.errors import RequestError, RunError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import digest, load, predict, state_of, to_input, torch_device


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (7, 24, 32, 3), dtype=np.uint8)


@pytest.fixture
def model():
    return build("half", 5, seed=3)


def test_inputs_are_channels_first_and_centred(images):
    tensor = to_input(images)
    assert tensor.shape == (7, 3, 24, 32)
    assert tensor.dtype == torch.float32
    assert tensor[4, 2, 11, 5].item() == pytest.approx((float(images[4, 11, 5, 2]) - 127.5) / 63.75)


def test_a_prediction_is_the_argmax_of_each_frame(model, images):
    labels = predict(model, images, batch=3)
    assert (labels.dtype, labels.shape) == (np.uint8, (7, 24, 32))
    model.eval()
    for image, label in zip(images, labels, strict=True):
        pixels = torch.tensor((image.astype(np.float32) - 127.5) / 63.75).permute(2, 0, 1)[None]
        assert np.array_equal(model(pixels).argmax(1)[0].numpy(), label)


def test_prediction_leaves_modes_and_statistics_as_they_were(model, images):
    model.train()
    model.first[1].eval()  # frozen on purpose
    before = digest(state_of(model))
    predict(model, images)
    assert model.training
    assert model.head.training
    assert not model.first[1].training
    assert digest(state_of(model)) == before


def test_weights_make_the_round_trip_and_are_copies(model):
    weights = state_of(model)
    assert all(value.flags["C_CONTIGUOUS"] and value.flags["OWNDATA"] for value in weights.values())
    before = digest(weights)
    with torch.no_grad():
        model.head.weight.add_(1)
    assert digest(weights) == before
    other = build("half", 5, seed=4)
    for value in weights.values():
        value.flags.writeable = False  # as arrays from shared memory are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(other, weights)
    assert digest(state_of(other)) == before
    with torch.no_grad():
        other.head.weight.add_(1)
    assert digest(weights) == before


def test_foreign_weights_are_refused(model):
    weights = dict(state_of(model))
    with pytest.raises(RunError, match="do not belong"):
        load(model, {**weights, "more": np.zeros(1)})
    with pytest.raises(RunError, match=r"head\.weight"):
        load(model, state_of(build("half", 6, seed=0)))


def test_the_digest_sees_names_types_shapes_and_bytes_but_not_the_order():
    base = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.int64)}
    assert digest(base) == digest(dict(reversed(base.items())))
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].reshape(2, 3), "b": base["b"]},
        {"a": base["a"].view(np.int32), "b": base["b"]},
        {"a": -base["a"], "b": base["b"]},
        {"a": base["a"]},
    ]
    assert len({digest(weights) for weights in [base, *others]}) == 6


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpu:x"])
def test_a_missing_torch_device_is_refused(model, images, name):
    with pytest.raises(RequestError, match=name):
        predict(model, images, device=name)
    with pytest.raises(RequestError, match=name):
        torch_device(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_predicts_the_same_as_the_cpu(model, images):
    on_cpu = predict(model, images)
    on_gpu = predict(model, images, device="cuda")
    assert np.mean(on_cpu == on_gpu) > 0.999  # another order of sums may change the class of a pixel
