"""Cost counts against closed forms and torch's counter of operations."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost


def flops(model: nn.Module, batch: int, height: int, width: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(batch, 3, height, width))
    return counter.get_total_flops()


@pytest.fixture
def example():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def test_multiply_accumulates_of_the_example_are_exact(example):
    assert count_cost(example, 16, 16).macs == 8 * 16 * 16 * 27 + 80
    assert flops(example, 2, 16, 16) == 221_504 == 2 * 2 * count_cost(example, 16, 16).macs


@pytest.mark.parametrize("name", ["tiny", "small", "half", "teacher"])
def test_networks_agree_with_torchs_counter(name):
    model = build(name, 6, seed=0)
    assert 2 * count_cost(model, 48, 80).macs == flops(model, 1, 48, 80)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 9, 5, stride=2, groups=3),
        nn.ConvTranspose2d(3, 6, 4, stride=2, padding=1, groups=3),
        nn.Conv2d(3, 4, (1, 3), dilation=2, padding=1),
        nn.Linear(14, 5),
    ],
)
def test_layers_agree_with_torchs_counter(layer):
    assert 2 * count_cost(layer, 12, 14).macs == flops(layer, 1, 12, 14) > 0


def test_bytes_and_parameters_of_the_example(example):
    cost = count_cost(example, 16, 16)
    conv = cost.layers[0]
    assert (conv.name, conv.kind, conv.parameters) == ("0", "Conv2d", 8 * 27 + 8)
    assert (conv.input_bytes, conv.output_bytes, conv.weight_bytes) == (3 * 256 * 4, 8 * 256 * 4, 4 * 224)
    assert [layer.kind for layer in cost.layers] == [type(module).__name__ for module in example]
    assert cost.parameters == 224 + 16 + 90
    assert cost.weight_bytes == 4 * (224 + 16 + 90) + 4 * 16 + 8  # with running statistics and their counter
    assert cost.activation_bytes == 4 * (3 * 8 * 256 + 8 + 8 + 10)


def test_a_module_used_twice_works_twice_and_is_stored_once():
    shared = nn.Conv2d(3, 3, 1)
    cost = count_cost(nn.Sequential(shared, nn.ReLU(), shared), 4, 5)
    assert cost.macs == 2 * 9 * 20
    assert (cost.parameters, cost.weight_bytes) == (12, 48)


def test_counting_neither_computes_nor_changes_the_model(example):
    example.train()
    statistics = example[1].running_mean.clone()
    count_cost(example, 16, 16)
    assert example.training
    assert torch.equal(example[1].running_mean, statistics)
    assert not example[0]._forward_hooks


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(3, 1, batch_first=True)
        self.scale = nn.Parameter(torch.ones(3))
        self.norm = nn.LayerNorm(3)

    def forward(self, images):
        x = self.norm(images.flatten(2).transpose(1, 2))
        return self.attend(x, x, x)[0] * self.scale


def test_parameters_without_counted_operations_are_logged(caplog, example):
    with caplog.at_level(logging.WARNING):
        count_cost(example, 16, 16)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        count_cost(Attention(), 4, 4)
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "attend" not in messages
    assert "Attention (root) has 3 parameters" in messages
    assert "LayerNorm" not in messages


class EinsumAttention(nn.Module):
    """Attention with four heads over the places of a frame, also implemented with einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 4, batch_first=True)
        self.lift = nn.Conv2d(3, 8, 1)

    def forward(self, images):
        x = self.lift(images).flatten(2).transpose(1, 2)
        x = self.attend(x, x, x, need_weights=False)[0]
        return torch.einsum("npc,nqc->npq", x, x)


def test_attention_counts_projections_and_products_in_any_form():
    torch.backends.mha.set_fastpath_enabled(True)  # of the process; counts in two threads at once could leave it off
    cost = count_cost(EinsumAttention(), 3, 4)
    places, width = 12, 8
    attention = places * width * 4 * width + 2 * places * places * width
    assert [(layer.name, layer.macs) for layer in cost.layers] == [
        ("lift", places * 3 * width),
        ("attend", attention),
        ("", places * places * width),
    ]
    assert cost.layers[1].parameters == 4 * width * width + 4 * width
    assert torch.backends.mha.get_fastpath_enabled()
