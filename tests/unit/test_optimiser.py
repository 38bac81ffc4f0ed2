"""Optimiser: descent on parameters with the weights of PyTorch's own Adam, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from driftlab.platform.networks.training.descent import CHUNK_ELEMENTS, Adam, Optimiser

SHAPES = ((3, 5), (7,), (CHUNK_ELEMENTS + 9,))  # the last is updated in chunks


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=source, dtype=dtype)) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_weights_are_those_of_torch(dtype: torch.dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    one, other = Optimiser(ours, Adam(0.01, 0.5)), torch.optim.Adam(theirs, lr=0.01, betas=(0.5, 0.999))
    source = torch.Generator().manual_seed(6)
    for step in range(6):
        one.zero_grad()
        other.zero_grad()
        for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            if (step, number) != (2, 1):  # a parameter without a gradient does not move, and does not count the step
                its.grad = torch.randn(its.shape, generator=source, dtype=dtype)
                mine.grad = its.grad.clone()
        before = ours[1].detach().clone()
        one.step()
        other.step()
        assert torch.equal(before, ours[1]) == (step == 2)
        assert all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True)), step


def test_gradients_are_forgotten_and_parameters_may_be_given_as_an_iterator():
    linear = nn.Linear(2, 1)
    optimiser = Optimiser(linear.parameters(), Adam(0.01))
    linear(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    assert [each.grad for each in optimiser.parameters] == [None, None]
