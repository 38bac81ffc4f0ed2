"""Ranking of filters: the closed form of Eq. 1 against all triplets, and planted useless filters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from driftlab.errors import RequestError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.pruning.ranking import rank, sum_by_class, triplet_response_residual
from driftlab.platform.networks.pruning.surgery import groups, mask

METHODS = ("trr", "trr_ratio", "trr_linear", "trr_linear_ratio", "l1", "bn_gamma", "random")
SEEDS = range(5)


def maps_of(seed: int, samples: int = 30, channels: int = 4) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(2, 1, (samples, channels, 6))), rng.integers(0, 3, samples)


def residual(maps: torch.Tensor, labels: np.ndarray, classes: int = 3) -> torch.Tensor:
    return triplet_response_residual(sum_by_class(maps, labels, classes))


def by_hand(maps: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    """Return the mean of Eq. 1 over all triplets."""
    far = (maps[:, None] - maps[None]).square().sum(dim=3)
    triplets = [
        far[anchor, negative] - far[anchor, positive]
        for anchor, positive, negative in itertools.product(range(len(maps)), repeat=3)
        if anchor != positive and labels[anchor] == labels[positive] and labels[anchor] != labels[negative]
    ]
    return torch.stack(triplets).mean(dim=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_closed_form_is_the_sum_over_all_triplets(seed):
    maps, labels = maps_of(seed)
    assert torch.allclose(residual(maps, labels), by_hand(maps, labels), rtol=1e-10, atol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_offset_changes_no_score_and_a_factor_counts_squared(seed):
    maps, labels = maps_of(seed)
    plain = residual(maps, labels)
    constant = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=maps.dtype)
    assert torch.allclose(residual(maps + constant, labels), plain, rtol=1e-9)
    assert torch.allclose(residual(-2.5 * maps, labels), 6.25 * plain, rtol=1e-10)


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_an_offset_of_all_maps_costs_no_digits(offset):
    """Without a centre, the squares of an offset of 1e6 standard deviations cost all 16 digits."""
    maps, labels = maps_of(0)
    maps = (maps * 1e-3 + offset).double()
    exact = by_hand(maps - offset, labels)
    assert torch.allclose(residual(maps, labels), exact, rtol=1e-4, atol=0)
    parts = sum_by_class(maps[:11], labels[:11], 3) + sum_by_class(maps[11:], labels[11:], 3)
    assert torch.allclose(triplet_response_residual(parts), exact, rtol=1e-4, atol=0)


def test_sums_without_listed_samples_change_no_total():
    maps, labels = maps_of(0)
    none = sum_by_class(maps[:5], np.full(5, -1), 3)
    both = (none + sum_by_class(maps, labels, 3), sum_by_class(maps, labels, 3) + none)
    assert all(torch.equal(triplet_response_residual(sums), residual(maps, labels)) for sums in both)


def test_single_samples_and_unlisted_labels_make_no_triplet():
    maps, labels = maps_of(0)
    labels[0] = 3
    assert torch.allclose(residual(maps, labels, 4), by_hand(maps, labels), rtol=1e-10)
    labels[1] = 255
    known = labels < 255
    assert torch.allclose(residual(maps, labels, 4), by_hand(maps[known], labels[known]), rtol=1e-10)
    with pytest.raises(RequestError, match="two classes"):
        residual(maps, np.zeros(30, dtype=int))


@pytest.mark.parametrize("absent", [0, 1, 3])
def test_a_class_without_samples_changes_no_score(absent):
    maps, labels = maps_of(0)
    labels = labels + (labels >= absent)
    assert torch.allclose(residual(maps, labels, 4), by_hand(maps, labels), rtol=1e-10)
    assert torch.allclose(residual(maps, labels, 9), by_hand(maps, labels), rtol=1e-10)


class PlantedFilters(nn.Module):
    """A network with four filters that separate the classes and four larger ones that respond to noise."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.join, self.name = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 4, 1), nn.Linear(4, 4)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.zero_()
            for number, (channel, sign) in enumerate(itertools.product((0, 1), (1, -1))):
                self.see.weight[number, channel], self.join.weight[number, number] = sign, 1
            self.see.weight[4:, 2, 0, 0] = torch.tensor([5.0, -5.0, 7.0, -7.0])
            self.join.weight[:, 4:] = 1e-4
            self.name.weight.copy_(torch.tensor([[1, -1, 1, -1], [1, -1, -1, 1], [-1, 1, 1, -1], [-1, 1, -1, 1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.name(self.join(self.see(x).relu()).relu().mean(dim=(2, 3)))


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames whose red and green depend on the class; blue is noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    images = rng.normal(127.5, 20, (count, 6, 6, 3))
    images[..., 0] += np.where(labels < 2, 40, -40)[:, None, None]
    images[..., 1] += np.where(labels % 2 == 0, 40, -40)[:, None, None]
    images[..., 2] += rng.normal(0, 30, (count, 1, 1))
    return images.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def test_planted_filters_come_last_by_response_and_first_by_weight():
    model, (images, labels) = PlantedFilters().eval(), pictures(200)
    found = groups(model, torch.zeros(1, 3, 6, 6))

    def scores(method):
        return rank(model, found, method, images=images, labels=labels, rng=np.random.default_rng(0))["see"]

    def right(method):
        kept = {"see": torch.topk(scores(method), 4).indices}
        pixels = torch.from_numpy((images.astype(np.float32) - 127.5) / 63.75).permute(0, 3, 1, 2)
        return float((mask(model, found, kept)(pixels).argmax(dim=1).numpy() == labels).mean())

    assert set(torch.topk(scores("trr"), 4).indices.tolist()) == {0, 1, 2, 3}
    assert set(torch.topk(scores("l1"), 4).indices.tolist()) == {4, 5, 6, 7}
    assert right("trr") > 0.995
    assert right("l1") < 0.5


class Pooled(nn.Module):
    """A network of two layers, each followed by two kinds of pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 3), nn.Linear(16, 3)
        self.pool, self.shrink = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        first = self.first(images)
        return [first, self.second(self.pool(first.relu()))]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.first(images).relu()
        second = self.second(self.pool(first)).relu()
        return self.head(torch.flatten(self.shrink(F.max_pool2d(second, 2)), 1))


@pytest.mark.parametrize(("method", "read"), [("trr", torch.relu), ("trr_linear", torch.clone)])
def test_maps_are_read_before_any_pooling(method, read):
    torch.manual_seed(0)
    model, rng = Pooled().eval(), np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (90, 20, 20, 3), dtype=np.uint8), rng.integers(0, 3, 90).astype(np.uint8)
    found = groups(model, torch.zeros(1, 3, 20, 20))
    scores = rank(model, found, method, images=images, labels=labels, rng=rng)
    with torch.no_grad():
        for (name, score), maps in zip(scores.items(), model.maps(to_input(images)), strict=True):
            wanted = residual(read(maps).flatten(2), labels)
            assert torch.allclose(score, wanted / wanted.abs().mean()), name


def test_the_ratio_is_that_of_the_distances_without_energy():
    maps, labels = maps_of(0)
    loud = maps * torch.tensor([1.0, 3.0, 0.1, 0.0])[:, None]  # the last filter never responds
    far = (maps[:, None] - maps[None]).square().sum(dim=3)
    pairs = [
        (far[anchor, negative], far[anchor, positive])
        for anchor, positive, negative in itertools.product(range(len(labels)), repeat=3)
        if anchor != positive and labels[anchor] == labels[positive] != labels[negative]
    ]
    apart, close = (torch.stack(side).sum(dim=0) for side in zip(*pairs, strict=True))
    ratio = triplet_response_residual(sum_by_class(loud, labels, 3), ratio=True)
    assert torch.allclose(ratio[:3], (apart / close - 1)[:3], rtol=1e-9)
    assert ratio[3] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["half", "tiny_classifier", "tiny_residual"])
def test_every_channel_of_the_zoo_has_a_score(network, method):
    model = build(network, 4, seed=0).eval()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (70, 16, 24, 3), dtype=np.uint8)
    labels = rng.integers(0, 4, (70, 16, 24) if network == "half" else 70).astype(np.uint8)
    found = groups(model, torch.zeros(1, 3, 16, 24))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, again = (
        rank(model, found, method, images=images, labels=labels, rng=np.random.default_rng(7)) for _ in range(2)
    )
    assert {name: len(each) for name, each in first.items()} == found.sizes
    assert all(each.isfinite().all() and torch.equal(each, again[name]) for name, each in first.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_weights_are_summed_by_hand():
    model = build("half", 4, seed=0)
    found = groups(model, torch.zeros(1, 3, 16, 24))
    scores = rank(model, found, "l1", images=np.empty(0), labels=np.empty(0), rng=np.random.default_rng(0))
    expected = model.first[0].weight.abs().double().sum(dim=(1, 2, 3))
    assert torch.allclose(scores["first.0"], expected / expected.mean())


def test_unusable_rankings_are_refused():
    model = PlantedFilters()
    found = groups(model, torch.zeros(1, 3, 6, 6))
    images, labels = pictures(8)
    with pytest.raises(RequestError, match="ranking l1 or random"):
        rank(model, found, "bn_gamma", images=images, labels=labels, rng=np.random.default_rng(0))
    with pytest.raises(RequestError, match="ranking l1"):
        rank(model, found, "trr", images=images, labels=np.empty(8, dtype=object), rng=np.random.default_rng(0))
