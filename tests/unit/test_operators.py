"""Compression operators: shapes, parameters and operations by formula, and a full-rank 3x3 kernel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.operators import OPERATORS, LowRank, inherit, narrow_width, shuffle_groups

SHAPES = [(8, 8, 1), (8, 16, 2), (7, 9, 1), (5, 3, 2), (16, 16, 2), (3, 12, 1)]


def weights(name: str, c: int, d: int, stride: int) -> list[tuple[int, int]]:
    """Return each convolution's weight: 1 at the output's resolution, 0 at the input's, 2 at half."""
    r, half, t = narrow_width(c), math.ceil(d / 2), 2 * c
    g, m = shuffle_groups(c, d)
    e = narrow_width(t)
    skipped = stride == 1 and c == d
    return {
        "fire": [(c * r, 0), (r * half + 9 * r * (d - half), 1)],
        "dwsep": [(9 * c, 1), (c * d, 1)],
        "bneck": [(c * r, 0), (9 * r * r + r * d, 1)],
        "share": [(c * r + 9 * r * r + r * d, 1)],
        "asym": [(3 * c * d, 1)],
        "ghost": [(c * half + 9 * half, 1)],
        "shuffle": [(c * m // g, 0), (9 * m + m * d // g, 1)],
        "mbconv": [(c * t, 0), (9 * t + t * d, 1), (2 * t * e, -1)],
        "identity": [(0 if skipped else c * d, 1)],
        "dense": [(9 * c * r + 9 * (c + r) * r + (c + 2 * r) * d, 1)],
        "resolution": [(9 * c * d, 2)],
    }[name]


@pytest.mark.parametrize(("c", "d", "stride"), SHAPES)
@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"svd"}))
def test_shapes_parameters_and_operations_are_those_of_the_formula(name: str, c: int, d: int, stride: int):
    operator = OPERATORS[name](c, d, stride).eval()
    assert operator(torch.randn(2, c, 7, 7)).shape == (2, d, math.ceil(7 / stride), math.ceil(7 / stride))
    convolutions = [module for module in operator.modules() if isinstance(module, nn.Conv2d)]
    expected = weights(name, c, d, stride)
    assert sum(module.weight.numel() for module in convolutions) == sum(count for count, _ in expected)
    if c == 3:
        places = {0: 49, 1: math.ceil(7 / stride) ** 2, -1: 1, 2: math.ceil(4 / stride) ** 2}
        cost = count_cost(nn.Sequential(operator), 7, 7)
        again = 9 * narrow_width(c) ** 2 * places[1] if name == "share" else 0  # the same weights, applied twice
        assert cost.macs == sum(count * places[where] for count, where in expected) + again


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("c", "d"), [(5, 7), (8, 4)])
def test_a_low_rank_pair_of_full_rank_is_the_convolution(c: int, d: int, stride: int):
    torch.manual_seed(0)
    whole, x = nn.Conv2d(c, d, 3, stride, padding=1, bias=False), torch.randn(2, c, 9, 9)
    errors = []
    for rank in (1, 2, min(3 * c, 3 * d)):
        pair = LowRank(c, d, stride, rank)
        assert sum(each.numel() for each in pair.parameters()) == 3 * c * rank + 3 * d * rank
        inherit(pair, whole.weight)
        errors.append(float((pair(x) - whole(x)).detach().abs().max()))
    assert errors[0] > errors[1] > 0.01
    assert errors[2] < 1e-5


@pytest.mark.parametrize(
    ("network", "stages"), [("half", (1, 1, 1)), ("tiny_staged", (2, 2, 2, 2)), ("mobilenet_v3_small", (3, 3, 3, 3))]
)
def test_a_network_is_cut_into_stages_that_any_operator_fits(network: str, stages: tuple[int, ...]):
    model, given = build(network, 4, seed=0).eval(), torch.randn(1, 3, 32, 32)
    chain = chain_of(model, given, 4)
    assert tuple(map(len, chain.stages)) == stages
    x = chain.stem(chain.expects.convert(given))
    for which in range(len(stages)):
        base = chain.stage(which, None).eval()(x)
        for name in ("svd", "identity"):
            assert chain.stage(which, name).eval()(x).shape == base.shape
        x = base
    if network == "tiny_staged":
        assert torch.equal(x, model.stages(model.stem(given)))


def test_a_network_without_a_chain_of_convolutions_is_refused():
    with pytest.raises(RequestError, match="has 0 convolutional blocks"):
        chain_of(build("teacher", 4, seed=0).eval(), torch.zeros(1, 3, 32, 32), 4)
