"""ElasticDNN's filters: their scores, the selection of filters, and their training."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from tta_factory import SineNet, four, frames, near

from driftlab.platform.adaptation import filters
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.elasticdnn import ElasticDnn
from driftlab.platform.adaptation.elasticdnn_cua import ElasticCua
from driftlab.platform.adaptation.elasticdnn_teacher import ElasticTeacher
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.vector import layout_of
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.hardware import Hardware

SCORES = np.array([0.05, 0.4, 0.02, 0.2, 0.01, 0.3, 0.02])


def classifier() -> nn.Module:
    return build("tiny_classifier", 4, seed=0).eval()


def wired(model: nn.Module) -> filters.Wiring:
    return filters.find_wiring(model, torch.randn(1, 3, 16, 24))


def chosen_of(model: nn.Module, given, how="topfrac", share=0.2) -> dict[str, np.ndarray]:
    def loss() -> torch.Tensor:
        return entropies(model(to_input(given.images))).mean()

    scores = filters.score_filters(model, wired(model), layout_of(model), loss)
    return filters.select_filters(scores, how, share, np.random.default_rng(0))


class TestScores:
    def test_they_are_the_gradients_of_scale_and_shift(self):
        """The fixture's input goes directly into the batch norm, which has no layer before it here."""
        model = SineNet()
        wiring = filters.Wiring({"layer": "norm"}, "head")
        scores = filters.score_filters(model, wiring, layout_of(model), lambda: entropies(outputs_of(model)).mean())
        near(scores["layer"], (0.786623, 0.326237, 0.290178))

    def test_a_layer_without_a_batch_norm_has_the_sum_of_its_rows(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        x = torch.randn(5, 3, 8, 8)
        wiring = filters.find_wiring(model, x)
        assert wiring == filters.Wiring({"0": None}, "4")
        scores = filters.score_filters(model, wiring, layout_of(model), lambda: entropies(model(x)).mean())
        entropies(model(x)).mean().backward()
        near(scores["0"], model[0].weight.grad.abs().sum(dim=(1, 2, 3)))


def outputs_of(model: SineNet) -> torch.Tensor:
    return model(to_input(four().images))


class TestChoice:
    def test_the_highest_scores_make_the_share_of_the_sum(self):
        rng = np.random.default_rng(0)
        assert filters.select_filters({"a": SCORES}, "cumulative", 0.8, rng)["a"].tolist() == [1, 3, 5]
        parts = {"a": SCORES[:3], "b": SCORES[3:]}
        found = filters.select_filters(parts, "cumulative", 0.8, rng)
        assert {name: rows.tolist() for name, rows in found.items()} == {"a": [1], "b": [0, 2]}
        assert list(filters.select_filters(parts, "cumulative", 0.3, rng)) == ["a"]
        equal = filters.select_filters({"a": np.ones(5)}, "cumulative", 0.4, rng)
        assert equal["a"].tolist() == [0, 1]

    def test_shares_of_every_layer(self):
        rng = np.random.default_rng(0)
        for how, rows in (("topfrac", [1, 5]), ("inverse", [2, 4]), ("all", list(range(7)))):
            assert filters.select_filters({"a": SCORES}, how, 0.2, rng)["a"].tolist() == rows
        assert len(filters.select_filters({"a": SCORES}, "random", 0.2, rng)["a"]) == 2

    def test_a_loss_without_gradient_selects_no_filter(self):
        assert filters.select_filters({"a": np.zeros(4)}, "all", 1.0, np.random.default_rng(0)) == {}


class TestRows:
    @pytest.mark.parametrize("network", ["wide_classifier", "wide_residual"])
    def test_only_the_chosen_rows_have_gradients_and_they_are_those_of_the_whole(self, network):
        model = build(network, 4, seed=0).double().eval()
        x = torch.randn(4, 3, 16, 24, dtype=torch.float64, requires_grad=True)
        chosen = {"deep.1.0" if network == "wide_classifier" else "deep.1.inner.0": np.array([1, 4, 20])}
        (layer,) = chosen
        whole = torch.autograd.grad(model(x).square().sum(), [x, model.get_parameter(f"{layer}.weight")])
        with filters.row_gradients(model, chosen):
            part = torch.autograd.grad(model(x).square().sum(), [x, model.get_parameter(f"{layer}.weight")])
        assert torch.allclose(part[0], whole[0], atol=1e-12)
        assert torch.allclose(part[1][[1, 4, 20]], whole[1][[1, 4, 20]], atol=1e-12)
        assert part[1].abs().sum(dim=(1, 2, 3)).count_nonzero() == 3
        assert "forward" not in vars(model.get_submodule(layer))

    def test_linear_layers_too(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 36), nn.Tanh(), nn.Linear(36, 3)).double()
        x = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
        parameters = [x, model[1].weight, model[1].bias]
        whole = torch.autograd.grad(model(x).square().sum(), parameters)
        with filters.row_gradients(model, {"1": np.array([2, 5])}):
            part = torch.autograd.grad(model(x).square().sum(), parameters)
        assert torch.allclose(part[0], whole[0]) and torch.allclose(part[2], whole[2])
        assert torch.allclose(part[1][[2, 5]], whole[1][[2, 5]])
        assert part[1].abs().sum(dim=1).count_nonzero() == 2

    def test_it_steps_as_torch_does(self):
        member = ElasticDnn(select="all", share=1.0, iterations=5, learning_rate=1e-2, clip=0.05, batch=64)
        ours, theirs, given = classifier(), classifier(), frames(20)
        done = member.adapt(ours, member.prepare(ours), given, Phase())
        learning = [value for name, value in theirs.named_parameters() if not name.startswith("head.")]
        optimiser = torch.optim.SGD(learning, lr=1e-2, momentum=0.9)
        rng, losses = frames(20).rng, []
        theirs.train()
        for _ in range(5):
            logits = theirs(to_input(given.images[rng.choice(20, size=20, replace=False)]))
            shares = logits.softmax(1)
            mean = shares.mean(0)
            loss = -(shares * shares.log()).sum(1).mean() + (mean * mean.log()).sum()
            losses.append(float(loss.detach()))
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, 0.05)
            for value in learning:  # after the clipping, unlike in torch's optimiser
                value.grad.add_(value.detach(), alpha=1e-3)
            optimiser.step()
        near(done.losses, losses, 1e-4)
        for name, value in ours.state_dict().items():
            near(value.double(), theirs.state_dict()[name].double(), 1e-4)


class TestPhases:
    def test_frozen_filters_and_the_head_stay_and_statistics_move(self):
        model, given = classifier(), frames(20)
        before = copy.deepcopy(model.state_dict())
        chosen = chosen_of(copy.deepcopy(model), given)
        member = ElasticDnn(select="topfrac", share=0.2, iterations=3, learning_rate=1e-2)
        done = member.adapt(model, member.prepare(model), given, Phase())
        assert done.iterations == 3
        for name, value in model.state_dict().items():
            moved = (value != before[name]).reshape(len(value) if value.dim() else 1, -1).any(dim=1)
            layer = name.rpartition(".")[0]
            if layer in chosen:
                assert np.flatnonzero(moved).tolist() == chosen[layer].tolist()
            if name.startswith("head."):
                assert not moved.any()
            if name.endswith("running_mean"):
                assert moved.all()

    def test_entropy_moves_scales_and_shifts_only(self):
        model, given = classifier(), frames(20)
        before = copy.deepcopy(model.state_dict())
        member = ElasticDnn(objective="entropy", iterations=3, learning_rate=1e-2)
        done = member.adapt(model, member.prepare(model), given, Phase())
        assert done.iterations == 3 or "worse" in done.skipped
        for name, value in model.named_parameters():
            if value.dim() > 1:
                assert torch.equal(value, before[name])

    @pytest.mark.slow
    def test_a_collapse_is_undone(self):
        model, given = classifier(), frames(20)
        model.head.weight.data[0] = 0.3  # with certainty alone, all frames become of this class
        before = copy.deepcopy(model.state_dict())
        member = ElasticDnn(select="all", share=1.0, div_weight=0.0, iterations=60, learning_rate=0.1)
        state = member.prepare(model)
        done = member.adapt(model, state, given, Phase())
        assert "collapsed after" in done.skipped
        assert 1 < len(done.passes.backward) < 60
        assert done.state is state and done.changed is None and done.passes.backward
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        bold = replace(member, guard=False).adapt(model, state, frames(20), Phase())
        assert (bold.iterations, bold.skipped) == (60, "")

    def test_a_phase_that_made_predictions_worse_is_undone(self):
        model, given = classifier(), frames(20)
        member = replace(ElasticDnn(iterations=2, learning_rate=0.3), weight_decay=1.0)
        done = member.adapt(model, member.prepare(model), given, Phase())
        assert "got worse" in done.skipped or "collapsed" in done.skipped
        bold = replace(member, guard=False).adapt(model, member.prepare(model), frames(20), Phase())
        assert bold.iterations == 2
        assert len(bold.passes.forward) == len(done.passes.forward) - 2  # no pass judges the samples

    @pytest.mark.slow
    @pytest.mark.parametrize("network", ["tiny_classifier", "wide_classifier"])
    def test_charged_operations_are_those_computed_in_whole_blocks(self, network):
        """The first layer's gradient of the images is charged in each backward pass and never computed."""
        built, machine = build(network, 4, seed=0).eval(), Hardware("counting", 1.0, 1e18, 0.0, 1, 0.0, 0.0)
        cost, charged, computed = count_cost(built, 16, 24), [], []
        for how, share in (("topfrac", 0.2), ("all", 1.0)):
            member, model = ElasticDnn(select=how, share=share, iterations=3), copy.deepcopy(built)
            state = member.prepare(model)
            with FlopCounterMode(display=False) as counted:
                work = member.adapt(model, state, frames(20), Phase()).passes
            to_pictures = cost.layers[0].macs * (20 + sum(work.backward))
            charged.append(task_cost(cost, machine, work).isolated_s - to_pictures)
            computed.append(counted.get_total_flops() / 2)
        assert charged[1] == pytest.approx(computed[1], rel=1e-6)
        if network == "tiny_classifier":  # it has two blocks: nothing can be saved
            assert charged[0] == charged[1] == pytest.approx(computed[0], rel=1e-6)
        else:
            assert computed[0] < charged[0] < 0.9 * charged[1]


class TestCua:
    def test_samples_of_every_domain_are_replayed(self):
        model, member = classifier(), ElasticCua(iterations=2, replay_per_domain=5, select="all", share=1.0)
        source = frames(5, seed=9)
        pack = {"images": source.images, "labels": np.arange(5, dtype=np.uint8) % 4}
        state, sizes = member.prepare(model, pack), []
        for seed in range(2):
            done = member.adapt(model, state, frames(12, seed), Phase())
            state = done.state
            sizes.append((bool(done.skipped), len(state.images)))
            assert len(done.passes.backward) in (0, 4)
        kept = 5
        for skipped, count in sizes:
            kept += 0 if skipped else 5
            assert count == kept
        again = member.prepare(copy.deepcopy(model), pack, go_on=state)
        assert len(again.images) == kept
        assert len(member.reset(model, state).images) == 5

    def test_without_source_samples_it_skips_with_a_reason(self):
        model, member = classifier(), ElasticCua(iterations=2)
        assert member.adapt(model, member.prepare(model), frames(4), Phase()).skipped


@pytest.mark.slow
def test_training_fits_the_labels_of_a_teacher():
    model, member = classifier(), ElasticTeacher(iterations=40, learning_rate=0.05, share=1.0, select="all")
    given = replace(frames(24), labels=(np.arange(24) % 4).astype(np.uint8))
    done = member.adapt(model, member.prepare(model), given, Phase())
    assert done.losses[-1] < 0.5 * done.losses[0]
    assert F.cross_entropy(model(to_input(given.images)), torch.from_numpy(given.labels).long()) < 1.2
