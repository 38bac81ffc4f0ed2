"""Members that learn without labels, number by number on a network that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tta_factory import STREAM, SineNet, four, frames, near, outputs, state_of

from driftlab.platform.adaptation.adabn import AdaBn
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.adaptation.onda import Onda
from driftlab.platform.adaptation.shot import Shot
from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import to_input

BY_BATCH = [
    [0.319117, -1.540166, -1.983427],
    [1.628046, 0.618834, -0.959331],
    [0, 0, 0],
    [-2.055839, 0.529393, 2.627903],
]


AFTER_ONE = [
    [2.066776, -1.082538, -3.236571],
    [1.282236, 0.471461, -0.772773],
    [0, 0, 0],
    [-0.388763, -0.125734, 0.252895],
]


class TestSource:
    def test_entropy_is_a_number_where_a_probability_is_none(self):
        logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
        entropy = entropies(logits).sum()
        entropy.backward()
        assert entropy.item() == 0
        assert logits.grad.isfinite().all()


class TestStatistics:
    def test_the_batch_variant_predicts_by_the_batch_and_keeps_the_weights(self):
        model, member = SineNet(), AdaBn(variant="batch", predict_on="batch")
        before, state = state_of(model), member.prepare(model)
        predicted = member.predict(model, state, four())
        near(model.seen[-1], BY_BATCH)
        done = member.adapt(model, state, four(), STREAM)
        near(model.seen[-1], BY_BATCH)
        assert done.predictions.tolist() == predicted.predictions.tolist() == [0, 0, 0, 2]
        assert done.passes == predicted.passes == Passes((4,))
        assert state_of(model) == before

    @pytest.mark.parametrize("member", [AdaBn(), Onda(), AdaBn(variant="full"), Tent(variant="run", learning_rate=0)])
    def test_running_statistics_after_one_pass(self, member):
        model = SineNet()
        member.adapt(model, member.prepare(model), four(), STREAM)
        if isinstance(member, AdaBn) and member.variant == "full":
            values = model.inputs.transpose(0, 1).flatten(1)
            near(model.norm.running_mean, values.mean(dim=1), 1e-12)
            near(model.norm.running_var, values.var(dim=1), 1e-12)
            return
        near(model.norm.running_mean, [0.085779, -0.196087, 0.249613])
        near(model.norm.running_var, [0.512515, 0.948077, 1.838680])
        near(outputs(model), AFTER_ONE)

    def test_onda_is_the_train_mode_of_torch(self):
        ours, theirs = build("tiny_classifier", 4, seed=0), build("tiny_classifier", 4, seed=0)
        member, given = Onda(), frames(37)
        member.adapt(ours, member.prepare(ours), given, Phase())
        theirs.train()
        with torch.no_grad():
            for start in range(0, 37, 10):
                theirs(to_input(given.images[start : start + 10]))
        assert state_of(ours) == state_of(theirs)
        assert not any(module.training for module in ours.modules())

    def test_alpha_blends_with_the_unbiased_variance(self):
        model = SineNet()
        values = model.inputs.transpose(0, 1).flatten(1)
        mean = 0.7 * model.norm.running_mean + 0.3 * values.mean(dim=1)
        variance = 0.7 * model.norm.running_var + 0.3 * values.var(dim=1)
        expected = F.batch_norm(model.inputs, mean, variance).relu().mean(dim=(2, 3)) @ model.head.weight.T
        before, member = state_of(model), AdaBn(variant="alpha", alpha=0.3, predict_on="batch")
        member.predict(model, member.prepare(model), four())
        near(model.seen[-1], expected.detach(), 1e-12)
        assert state_of(model) == before


class TestTent:
    SGD = Tent(optimiser="sgd", momentum=0.0, learning_rate=0.1)

    def test_it_steps_as_torch_does(self):
        """Ten steps over mini-batches, with the stored statistics moving, against torch's own optimiser."""
        ours, theirs = (build("tiny_classifier", 4, seed=0) for _ in range(2))
        member = Tent(variant="run", iterations=10, batch=6)
        given = frames(20)
        done = member.adapt(ours, member.prepare(ours), given, Phase())
        rng = frames(20).rng
        theirs.train()
        learning = [
            value for norm in theirs.modules() if isinstance(norm, nn.BatchNorm2d) for value in norm.parameters()
        ]
        optimiser = torch.optim.Adam(learning, lr=1e-3)
        for _ in range(10):
            optimiser.zero_grad()
            rows = rng.choice(20, size=6, replace=False)
            entropies(theirs(to_input(given.images[rows]))).mean().backward()
            optimiser.step()
        assert done.iterations == len(done.losses) == 10
        assert state_of(ours) == state_of(theirs)

    def test_uniform_predictions_have_no_gradient(self):
        """Uniform outputs are a saddle: the gradient is 0 to the bit."""
        model, member = SineNet(), self.SGD
        model.head.weight.data.zero_()
        member.adapt(model, member.prepare(model), four(), STREAM)
        assert model.norm.weight.tolist() == [1, 1, 1]

    def test_a_network_that_changed_keeps_the_moments_that_fit(self):
        model, member = build("tiny_classifier", 4, seed=0), Tent()
        state = member.adapt(model, member.prepare(model), frames(8), STREAM).state
        other = build("tiny_classifier", 4, seed=1)
        other.first[1] = nn.BatchNorm2d(16)
        other.first[1].weight.data.fill_(3)
        other.deep[0][1] = nn.BatchNorm2d(7)
        kept = member.prepare(other, go_on=state)
        assert kept.steps == 1
        assert kept.moments[1]["first.1.weight"].tobytes() == state.moments[1]["first.1.weight"].tobytes()
        assert "deep.0.1.weight" not in kept.moments[0]
        assert kept.source["first.1.weight"].tolist() == [3] * 16  # of the network given, not of the one before
        assert member.prepare(nn.Sequential(nn.BatchNorm2d(3)), go_on=state).steps == 0


@pytest.mark.parametrize(
    "member", [AdaBn(variant="batch"), Tent(predict_on="frame"), AdaBn(variant="batch", predict_on="batch")]
)
def test_one_frame_with_one_pixel_is_predicted_with_stored_statistics(member):
    model = SineNet()
    model.inputs = model.inputs[:, :, :1, :1]
    one = replace(four(), images=four().images[:1])
    expected = outputs(model)[:1]
    member.predict(model, member.prepare(model), one)
    near(model.seen[-1], expected, 1e-12)


@pytest.mark.parametrize("member", [AdaBn(), AdaBn(variant="full"), Onda(), Tent(), Tent(variant="run"), Shot()])
def test_a_batch_too_small_for_a_batch_norm_is_skipped(member):
    model = SineNet()
    model.inputs = model.inputs[:, :, :1, :1]
    before, state = state_of(model), member.prepare(model)
    done = member.adapt(model, state, replace(four(), images=four().images[:1]), STREAM)
    assert done.skipped
    assert done.state is state
    assert state_of(model) == before
