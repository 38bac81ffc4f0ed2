"""The safe form of strided 1x1 convolutions has equal outputs, for networks of every origin."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.pruning.surgery.edit import cut, expand
from driftlab.platform.networks.pruning.surgery.grouping import groups as groups_of
from driftlab.platform.networks.strided import NARROW, Conv1x1Strided, make_safe
from driftlab.platform.networks.zoo import OWN
from driftlab.platform.scaling.base import Budget
from driftlab.platform.sim.nodes.networks import network_for

GEOMETRIES = [  # stride, padding, padding mode, groups
    (2, 0, "zeros", 1),
    (3, 1, "zeros", 1),
    ((1, 2), (2, 1), "reflect", 1),
    (2, "valid", "zeros", 2),
]


def learn(conv: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the output, and the gradients of the input and of every parameter."""
    images = images.clone().requires_grad_()
    output = conv(images)
    return [output, *torch.autograd.grad(output.square().sum(), [images, *conv.parameters()])]


@pytest.mark.parametrize(("stride", "padding", "mode", "groups"), GEOMETRIES)
@pytest.mark.parametrize("shape", [(3, 4, 9, 12), (4, 8, 8)], ids=["batch", "image"])
def test_the_same_numbers_result(stride, padding, mode, groups, shape):
    conv = nn.Conv2d(4, 6, 1, stride, padding, groups=groups, padding_mode=mode)
    images = torch.randn(shape)
    expected = learn(conv, images)
    safe = make_safe(conv)
    assert type(safe) is Conv1x1Strided
    for found, known in zip(learn(safe, images), expected, strict=True):
        torch.testing.assert_close(found, known)


@pytest.mark.parametrize(
    ("conv", "unsafe"),
    [
        (nn.Conv2d(NARROW - 1, 9, 1, 2), True),
        (nn.Conv2d(NARROW, 9, 1, 2), False),
        (nn.Conv2d(2 * NARROW, 8, 1, 2, groups=4), True),
        (nn.Conv2d(3, 9, 1, 1), False),
        (nn.Conv2d(3, 9, 3, 2), False),
        (nn.Conv2d(3, 9, (1, 3), 2), False),
    ],
)
def test_only_shapes_that_crash_change_their_form(conv: nn.Conv2d, unsafe: bool):
    names = list(conv.state_dict())
    assert (type(make_safe(conv)) is Conv1x1Strided) == unsafe
    assert list(conv.state_dict()) == names  # stored weights still load


def test_copies_keep_the_form():
    conv = make_safe(nn.Conv2d(3, 5, 1, 2))
    assert {type(copy.deepcopy(conv)), type(pickle.loads(pickle.dumps(conv)))} == {Conv1x1Strided}


def test_surgery_takes_the_form_and_gives_it_back():
    whole = build("tiny_residual", 5, seed=0)
    groups = groups_of(whole, torch.zeros(1, 3, 16, 16))
    keep = {groups.home("first.0"): range(3)}
    small = cut(whole, groups, keep)
    grown = expand(small, whole, groups, keep)
    forms = [type(model.get_submodule("deep.0.shortcut.0")) for model in (whole, small, grown)]
    assert forms == [nn.Conv2d, Conv1x1Strided, nn.Conv2d]


def test_a_network_of_a_plug_in_takes_the_form_when_it_is_selected():
    class Mine:
        def select(self, family: nn.Module, budget: Budget) -> nn.Module:
            return family

    network = network_for(Mine(), nn.Sequential(nn.Conv2d(3, 9, 1, 2)), Budget())
    assert isinstance(network[0], Conv1x1Strided)


def test_costs_are_those_of_the_convolution_as_published():
    plain = nn.Sequential(nn.Conv2d(3, 9, 1, 2))
    before = count_cost(plain, 16, 16)
    after = count_cost(make_safe(plain), 16, 16)
    assert (after.macs, after.activation_bytes) == (before.macs, before.activation_bytes)
    assert [(layer.macs, layer.input_bytes) for layer in after.layers] == [
        (layer.macs, layer.input_bytes) for layer in before.layers
    ]


@pytest.mark.parametrize("name", OWN)
def test_no_network_of_the_zoo_holds_an_unsafe_convolution(name: str):
    for module in build(name, 5, seed=0).modules():
        if type(module) is nn.Conv2d and module.kernel_size == (1, 1) and max(module.stride) > 1:
            assert module.in_channels >= NARROW
