"""The flat vector of a model's trainable parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build


class Tied(nn.Module):
    """A network with tied weights and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(4, 4)
        self.early = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = nn.Parameter(self.early.weight.data)  # another parameter, the same storage
        self.still = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.late(self.again(self.early(self.still(x))))


def test_each_storage_counts_once_and_frozen_parameters_not():
    layout = vector.layout_of(Tied())
    assert layout.names == ("late.weight", "late.bias", "early.weight")
    assert layout.sizes == (16, 4, 16)
    assert layout.size == 36
    assert layout.spans["early.weight"] == slice(20, 36)


def test_read_returns_the_written_bits():
    model = build("tiny", 8, seed=0)
    there = np.random.default_rng(0).normal(size=vector.layout_of(model).size).astype(np.float32)
    there.flags.writeable = False  # as arrays from shared memory are
    vector.write(model, there)
    assert vector.read(model).tobytes() == there.tobytes()
    assert model.head.bias.detach().numpy().tobytes() == there[-8:].tobytes()
    with pytest.raises(RequestError, match="24088 trainable parameters"):
        vector.write(model, there[1:])


def test_a_bound_model_computes_and_trains_the_same():
    torch.manual_seed(0)
    model, free = Tied(), Tied()
    free.load_state_dict(model.state_dict())
    free.again.weight = free.early.weight
    x = torch.randn(5, 4)
    before = vector.read(model)
    with vector.bind_vector(model) as flat:
        assert vector.read(model).tobytes() == before.tobytes() == flat.weights.numpy().tobytes()
        for net in (model, free):
            net(x).square().sum().backward()
        expected = torch.cat([p.grad.reshape(-1) for p in free.parameters() if p.requires_grad])
        assert torch.allclose(flat.gradients, expected)
        flat.weights.mul_(2)
    assert vector.read(model).tobytes() == (2 * before).tobytes()
    assert all(p.grad is None for p in model.parameters())


def test_afterwards_parameters_own_their_storage_and_ties_hold():
    model = Tied()
    with vector.bind_vector(model):
        pass
    assert all(p.untyped_storage().nbytes() == 4 * p.numel() for p in model.parameters())
    assert model.again.weight.data_ptr() == model.early.weight.data_ptr()


def test_layers_are_listed_as_they_run():
    model = Tied()
    order = vector.running_order(model, vector.layout_of(model), torch.zeros(1, 4))
    assert order == ["early.weight", "late.weight", "late.bias"]


def test_mixed_types_are_refused():
    with pytest.raises(RequestError, match="float16 and float32"):
        vector.layout_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()))
    with pytest.raises(RequestError, match="no trainable parameters"):
        vector.bind_vector(nn.ReLU()).__enter__()
