"""Published networks: parameters, multiply-accumulates, order of parts, inputs, a training step."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.features import features
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION
from driftlab.platform.networks.zoo import PUBLISHED, ZOO, Input

# Outputs, parameters and multiply-accumulates as published in papers or by libraries.
PUBLISHED_COSTS = {
    "deeplabv3_mobilenet_v2": (21, 2.11e6, 2.75e9),
    "resnet56": (10, 0.85e6, 0.127e9),
    "vgg16_cifar": (10, 14.72e6, 0.313e9),
    "wrn_28_10": (10, 36.5e6, 5.25e9),
    "resnext29": (10, 34.4e6, 5.4e9),
    "resnext29_2x64d": (10, 9.13e6, 1.41e9),
    "senet18": (1000, 11.78e6, 1.82e9),
    "resnet18_cbam": (1000, 11.78e6, 1.815e9),
    "yolov3": (251, 61.95e6, 32.95e9),  # with the 255 outputs of its anchors
    "yolov3_tiny": (251, 8.86e6, 2.78e9),
    "resnet18": (1000, 11.69e6, 1.81e9),
    "resnet50": (1000, 25.56e6, 4.09e9),
    "vgg16": (1000, 138.36e6, 15.47e9),
    "mobilenet_v2": (1000, 3.50e6, 0.30e9),
    "mobilenet_v3_small": (1000, 2.54e6, 0.056e9),
    "mobilenet_v3_large": (1000, 5.48e6, 0.217e9),
    "shufflenet_v2_x1_0": (1000, 2.28e6, 0.145e9),
    "squeezenet1_1": (1000, 1.24e6, 0.35e9),
    "vit_small": (1000, 22.05e6, 4.6e9),
}
SMALL = ("resnet56", "squeezenet1_1", "mobilenet_v3_small")  # a training step takes less than a second


@cache
def without_weights(name: str) -> torch.nn.Module:
    """Return a network on the meta device."""
    with torch.device("meta"):
        return build(name, PUBLISHED_COSTS.get(name, (8,))[0], seed=0).eval()


def size_of(name: str) -> tuple[int, int]:
    return ZOO[name].input.size or (64, 96)


def test_every_network_of_a_paper_is_compared_with_its_published_numbers():
    assert set(PUBLISHED_COSTS) == set(PUBLISHED) - {"deeplabv3_mobilenet"}  # the paper has another head


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED_COSTS)
def test_parameters_and_operations_are_those_published(name):
    _, parameters, macs = PUBLISHED_COSTS[name]
    cost = count_cost(without_weights(name), *size_of(name))
    assert cost.parameters == pytest.approx(parameters, rel=0.01)
    assert cost.macs == pytest.approx(macs, rel=0.02)


@pytest.mark.parametrize("name", ZOO)
def test_parts_are_named_in_running_order_and_cover_the_network(name):
    entry = ZOO[name]
    with torch.no_grad():
        found = features(without_weights(name), torch.zeros(1, 3, *size_of(name), device="meta"))
    parts = [*entry.blocks, entry.head]
    ran = [next((part for part in parts if f"{layer}.".startswith(f"{part}.")), layer) for layer in found.layers]
    assert list(dict.fromkeys(ran)) == parts
    assert found.head == entry.head


def test_convert_returns_the_expected_input():
    grey = torch.full((1, 3, 4, 4), 0.25 / 0.25)  # 0.75 on the scale from 0 to 1
    expects = Input((8, 8), (0.5, 0.25, 0.75), (0.25, 0.5, 0.1), fixed=True)
    made = expects.convert(grey)
    assert made.shape == (1, 3, 8, 8)
    assert torch.allclose(made[0, :, 0, 0], torch.tensor([1.0, 1.0, 0.0]), atol=1e-6)
    assert Input().convert(grey) is grey


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_published_networks_train_and_predict(name):
    model = build(name, 5, seed=0).train()
    images = torch.randn(4, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3]).numpy()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimiser.zero_grad()
        loss = CLASSIFICATION.loss(model(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[1] != losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("name", "task"), [("yolov3_tiny", DETECTION), ("deeplabv3_mobilenet_v2", SEGMENTATION)])
def test_outputs_are_those_that_the_task_reads(name, task):
    with torch.no_grad():
        predictions = task.predictions(build(name, 5, seed=0).eval()(torch.zeros(1, 3, 33, 64)), 33, 64)
    blank = task.blank(1, 33, 64)
    assert (predictions.shape, predictions.dtype) == (blank.shape, blank.dtype)
