"""Gates, networks cut by them, and the domain knowledge of a master's layers."""

from __future__ import annotations

import copy

import pytest
import torch
from scaling_factory import Residual, numbers
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.module_utils import batch_norms
from driftlab.platform.networks.pruning import gating, knowledge
from driftlab.platform.networks.pruning.gating import GatedNetwork, find_sites, kept_places, top_channels
from driftlab.platform.networks.pruning.knowledge import LayerLink
from driftlab.platform.networks.pruning.surgery import groups

SIZE = (16, 24)


class Inverted(nn.Module):
    """An inverted residual as in MobileNetV2 (expansion, depthwise, projection), then 4-channel blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.expand = nn.Sequential(nn.Conv2d(6, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(16, 6, 1, bias=False), nn.BatchNorm2d(6))
        self.narrow = nn.Sequential(nn.Conv2d(6, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=4), nn.BatchNorm2d(16), nn.ReLU())
        self.widen = nn.Sequential(nn.Conv2d(16, 6, 1, bias=False), nn.BatchNorm2d(6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.project(self.depth(self.expand(x)))
        x = x + self.widen(self.blocks(self.narrow(x)))
        logits: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def shaken(model: nn.Module) -> nn.Module:
    """Return the model with random batch-norm parameters and statistics, in float64."""
    torch.manual_seed(3)
    for norm in batch_norms(model).values():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.data.uniform_(0.4, 1.4)
    return model.double().eval()


NETWORKS = {
    "chain": lambda: build("tiny_classifier", 4, seed=0),
    "blocks": lambda: build("tiny_residual", 4, seed=0),
    "pixels": lambda: build("half", 4, seed=0),
    "inverted": Inverted,
}


def gated_network(name: str, ratio: float) -> tuple[GatedNetwork, torch.Tensor]:
    torch.manual_seed(1)
    model = shaken(NETWORKS[name]())
    images = torch.randn(5, 3, *SIZE, dtype=torch.float64)
    sites, _ = find_sites(model, groups(model, images), images)
    gated = GatedNetwork(model, sites, 4, 2).double().eval()
    for gate in gated.gates:  # as after training: gates differ between frames
        nn.init.normal_(gate.predict.weight, std=0.8)
    gated.ratio = ratio
    return gated, images


def cut_for(gated: GatedNetwork, raw: dict[str, torch.Tensor], row: int, images: torch.Tensor) -> nn.Module:
    kept, gates = {}, {}
    for site in gated.sites:
        keep = gating.keep_count(site.size, gated.ratio, gated.min_keep)
        kept[site.group] = top_channels(site.per_unit(raw[site.group][row]), keep)
        gates[site.group] = raw[site.group][row][kept_places(site, kept[site.group])]
    return gating.cut_gated(gated.network, groups(gated.network, images), gated.sites, kept, gates)


class TestGates:
    def test_a_gate_depends_on_the_mean_absolute_input(self):
        gate = gating.ChannelGate(3, 40, 4)
        assert gate.squeeze.out_features == 10
        assert gating.ChannelGate(3, 8, 16).squeeze.out_features == 4
        x = torch.randn(2, 3, 4, 5)
        assert torch.equal(gate(x), gate(-x))
        nn.init.zeros_(gate.predict.weight)
        assert torch.equal(gate(x), torch.ones(2, 40))

    def test_gates_of_one_on_all_channels_change_no_output(self):
        gated, images = gated_network("blocks", 1.0)
        for gate in gated.gates:
            nn.init.zeros_(gate.predict.weight)
        assert torch.equal(gated(images), gated.network(images))

    def test_groups_that_share_a_stream_or_lack_a_batch_norm_are_not_gated(self):
        model = build("tiny_residual", 4, seed=0).eval()
        sites, others = find_sites(model, groups(model, torch.zeros(1, 3, *SIZE)), torch.zeros(1, 3, *SIZE))
        assert [site.group for site in sites] == ["first.0", "deep.0.inner.0", "deep.1.inner.0"]
        assert set(others) == {"deep.0.outer.0"}
        model = Residual().eval()
        sites, others = find_sites(model, groups(model, torch.zeros(1, 3, 16, 16)), torch.zeros(1, 3, 16, 16))
        assert not sites
        assert "inner" in others

    def test_blocks_and_depthwise_layers_are_gated_after_their_last_batch_norm(self):
        gated, _ = gated_network("inverted", 0.5)
        found = {site.group: (site.conv, site.norm, site.size) for site in gated.sites}
        assert found == {"expand.0": ("expand.0", "depth.1", 16), "narrow.0": ("narrow.0", "blocks.1", 4)}


class TestSurrogates:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_surrogate_equals_the_gated_network_on_its_frame(self, name):
        gated, images = gated_network(name, 0.4)
        with torch.no_grad():
            expected, raw = gated.run(images)
            small = cut_for(gated, raw, 2, images)
            made = small(images)
        assert (made - expected)[2].abs().max() < 1e-10
        assert (made - expected)[0].abs().max() > 1e-6  # another frame has other gates
        parameters = [sum(value.numel() for value in each.parameters()) for each in (small, gated.network)]
        assert parameters[0] < parameters[1]

    @pytest.mark.slow
    def test_a_gate_before_the_batch_norm_could_not_be_cut(self, monkeypatch):
        gated, images = gated_network("blocks", 0.4)
        with torch.no_grad():
            _, raw = gated.run(images)
            small = cut_for(gated, raw, 2, images)
        before = [copy.copy(site) for site in gated.sites]
        for site in before:
            object.__setattr__(site, "norm", site.conv)
        gated.sites = tuple(before)
        with torch.no_grad():
            assert (gated(images) - small(images))[2].abs().max() > 1e-2


class TestKnowledge:
    def change(self) -> torch.Tensor:
        change = torch.zeros(6, 10, dtype=torch.float64)
        change[[1, 4]] = torch.randn(2, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        return change

    def link(self, mixing: torch.Tensor | None) -> LayerLink:
        rows = torch.randn(6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        return LayerLink(mixing, rows if mixing is None else torch.linalg.solve(mixing, rows))

    def test_equations_3_and_4_change_a_layer_by_mixing_times_its_transpose(self):
        torch.manual_seed(0)
        mixing = torch.randn(6, 6, dtype=torch.float64)
        link, change = self.link(mixing), self.change()
        rate = 1 / float(torch.linalg.matrix_norm(mixing, 2)) ** 2  # a large amplification is scaled down
        moved = link.store_change(change, 1.0).weights - link.weights
        assert (moved - rate * mixing @ mixing.T @ change).abs().max() < 1e-12

    def test_identity_and_rotation_transfer_a_change_fully_and_softmax_attenuates_it(self):
        torch.manual_seed(0)
        change = self.change()
        for mixing in (None, knowledge.random_mixing(6, orthogonal=True)):
            link = self.link(mixing)
            moved = link.store_change(change, 1.0).weights - link.weights
            assert (moved - change).abs().max() < 1e-12
        for shares in (torch.randn(6, 6, dtype=torch.float64).softmax(1), knowledge.random_mixing(6, orthogonal=False)):
            link = self.link(shares)
            moved = link.store_change(change, 1.0).weights - link.weights
            assert 0.05 < 1 - float(moved.norm() / change.norm()) < 0.85

    @pytest.mark.parametrize(("shape", "low", "high"), [((6, 10), 0.3, 0.9), ((10, 6), 0.0, 1e-10)])
    def test_fixed_entries_cannot_reproduce_an_arbitrary_layer(self, shape, low, high):
        torch.manual_seed(0)
        rows, entries = (torch.randn(*shape, dtype=torch.float64) for _ in range(2))
        rest = rows - rows @ torch.linalg.pinv(entries) @ entries
        assert low <= float(rest.norm() / rows.norm()) <= high

    def test_a_mixture_starts_as_the_layer_and_becomes_its_weights(self):
        model = build("half", 4, seed=0).eval()
        images, before = torch.randn(2, 3, *SIZE), numbers(model)
        expected, layers = model(images), knowledge.layers_with_knowledge(model, "head")
        knowledge.parametrise(model, layers)
        assert torch.equal(model(images), expected)
        with torch.no_grad():
            for name in layers:
                model.get_submodule(name).parametrizations.weight[0].offset.normal_(std=0.1)
        made = model(images)
        links = knowledge.fix_mixtures(model, layers)
        knowledge.mix_layers(model, links)
        assert set(numbers(model)) == set(before)
        assert knowledge.largest_gap(model, links) < knowledge.MAX_GAP
        assert (model(images) - made).abs().max() < 1e-5

    def test_the_order_of_filters_does_not_affect_equation_3(self):
        torch.manual_seed(0)
        link, change = self.link(knowledge.random_mixing(6, orthogonal=False)), self.change()
        parts = [torch.zeros_like(change) for _ in range(2)]
        parts[0][1], parts[1][4] = change[1], change[4]
        one = link.store_change(parts[0], 1.0).store_change(parts[1], 1.0)
        other = link.store_change(parts[1], 1.0).store_change(parts[0], 1.0)
        assert (one.weights - other.weights).abs().max() < 1e-12
        assert (one.weights - link.store_change(change, 1.0).weights).abs().max() < 1e-12


class TestKindsOfGates:
    def test_frames_of_a_domain_share_gates_that_follow_their_mean(self):
        torch.manual_seed(0)
        gate = gating.DomainGate(3, 6)
        nn.init.normal_(gate.predict.weight)
        x = torch.randn(6, 3, 4, 4) * torch.tensor([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])[:, None, None, None]
        raw = gate.train()(x, 3)
        assert torch.equal(raw[0], raw[2])
        assert not torch.equal(raw[0], raw[3])
        pooled = x.abs().mean(dim=(2, 3)).view(2, 3, 3).mean(dim=1)
        normed = (pooled - pooled.mean(dim=0)) / pooled.var(dim=0, unbiased=False).add(1e-5).sqrt()
        expected = torch.relu(gate.predict(normed.clamp(-2, 2)))
        assert torch.allclose(raw[::3], expected, atol=1e-5)

    @pytest.mark.parametrize("kind", ["static", "random"])
    def test_constant_gates_are_equal_for_all_frames(self, kind):
        torch.manual_seed(0)
        gate = gating.gate_of(kind, 3, 6, 16)
        raw = gate(torch.randn(4, 3, 2, 2))
        assert torch.equal(raw, raw[:1].expand(4, -1))
        assert (raw.std() > 0) == (kind == "random")
        assert any(value.requires_grad for value in gate.parameters()) == (kind == "static")

    def test_frozen_gates_follow_the_frame_and_do_not_learn(self):
        gate = gating.gate_of("frozen", 3, 6, 16)
        raw = gate(torch.randn(4, 3, 2, 2))
        assert not torch.equal(raw[0], raw[1])
        assert not any(value.requires_grad for value in gate.parameters())
