"""The networks by name: sizes, shapes, seeds and error messages."""

from __future__ import annotations

import builtins
import subprocess
import sys

import numpy as np
import pytest
import torch

from driftlab.errors import RequestError
from driftlab.platform.networks import architectures as networks
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.predict import predict
from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.networks.zoo import OWN, ZOO


def parameters(name: str, classes: int) -> int:
    return sum(parameter.numel() for parameter in build(name, classes, seed=0).parameters())


def test_every_name_has_a_maker_and_one_line():
    assert set(ZOO) == set(networks.MAKERS)
    assert all(one.summary and "\n" not in one.summary for one in ZOO.values())


def test_the_students_and_the_teacher_have_their_sizes():
    assert parameters("tiny", 5) == 23_941  # counted by hand: 432 + 4608 + 2 x 9216, norms 224, head 245
    assert 50_000 < parameters("small", 8) < 60_000
    assert parameters("half", 8) < parameters("tiny", 8) / 3
    assert 300_000 < parameters("teacher", 8) < 600_000


@pytest.mark.parametrize("name", [name for name in OWN if task_of(name) is SEGMENTATION])
@pytest.mark.parametrize("size", [(48, 80), (33, 50)])
def test_logits_come_at_the_size_of_the_input(name, size):
    assert build(name, 7, seed=0).eval()(torch.zeros(2, 3, *size)).shape == (2, 7, *size)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("height, width", [(48, 80), (33, 50)])
def test_every_network_has_a_prediction_per_frame(name, height, width):
    task = task_of(name)
    images = np.random.default_rng(0).integers(0, 255, (3, height, width, 3), dtype=np.uint8)
    predictions = predict(build(name, 7, seed=0).eval(), images, task=task, batch=2)
    blank = task.blank(3, height, width)
    assert predictions.shape == blank.shape and predictions.dtype == blank.dtype
    assert task.counts(predictions, predictions, 7).shape[0] == 3 and np.all(
        task.score(task.counts(predictions, predictions, 7)) == 1
    )


def test_deeplab_gives_logits_at_the_size_of_the_input(torchvision):
    with torch.inference_mode():
        assert build("deeplabv3_mobilenet", 5, seed=0).eval()(torch.zeros(1, 3, 64, 96)).shape == (1, 5, 64, 96)


@pytest.mark.parametrize(
    "error", [ImportError("no such module"), RuntimeError("operator torchvision::nms is not there")]
)
@pytest.mark.parametrize("name", ["deeplabv3_mobilenet", "resnet18"])
def test_a_missing_torchvision_is_reported_with_the_fix(monkeypatch, name, error):
    usual = builtins.__import__

    def broken(module, *rest):
        if module.startswith("torchvision"):
            raise error
        return usual(module, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(RequestError, match=r"(?s)needs torchvision.*same index.*driftlab doctor"):
        build(name, 5, seed=0)


def test_weights_depend_on_the_seed_and_other_generators_are_unchanged():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, same, other = (build("half", 5, seed=seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(RequestError, match="Did you mean 'teacher'"):
        build("teachr", 5, seed=0)


@pytest.mark.slow
def test_names_and_recipes_cost_no_torch():
    modules = "driftlab.platform.networks.zoo, driftlab.platform.networks.training.artifacts"
    code = f"import {modules}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
