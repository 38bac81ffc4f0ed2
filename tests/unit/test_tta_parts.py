"""Parts of label-free members: views of frames, memories, and batch norms with other statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from tta_factory import near

from driftlab.platform.adaptation.augment import augment
from driftlab.platform.adaptation.banks import CategoryBalancedBank, ReservoirBank
from driftlab.platform.adaptation.norms import FollowingNorm, InstanceNorm, normalise_with
from driftlab.platform.adaptation.rotta import timeliness
from driftlab.platform.adaptation.t3a import most_confident


class TestViews:
    @pytest.mark.parametrize("views", ["colour", "all", "mirrored"])
    def test_a_view_is_an_image_and_the_same_numbers_give_the_same_view(self, views):
        inputs = torch.linspace(-2, 2, 2 * 3 * 9 * 7).view(2, 3, 9, 7)
        first, second = (augment(inputs, np.random.default_rng(4), views) for _ in range(2))
        assert torch.equal(first, second)
        assert first.shape == inputs.shape
        assert first.min() >= -2
        assert first.max() <= 2
        assert not torch.equal(first, augment(inputs, np.random.default_rng(5), views))

    def test_a_grey_image_stays_grey_and_in_place(self):
        inputs = torch.full((3, 3, 8, 8), 0.4)
        seen = augment(inputs, np.random.default_rng(0), "all")
        assert float(seen.flatten(1).std(dim=1).max()) < 0.05


class TestMemories:
    def test_a_timely_memory_frame_by_frame(self):
        bank, content = CategoryBalancedBank(4, classes=2), []
        for number, (label, doubt) in enumerate(
            [(0, 0.1), (0, 0.6), (0, 0.2), (1, 0.5), (0, 0.05), (1, 0.1), (1, 0.3)]
        ):
            bank.add(np.array(number), label, doubt)
            content.append([int(bank.images[place]) for place in bank.by_class()])
        assert content == [[0], [0, 1], [0, 2], [0, 2, 3], [0, 4, 3], [0, 4, 3, 5], [0, 4, 5, 6]]
        assert (bank.ages[bank.by_class()] / 4).tolist() == [1.75, 0.75, 0.5, 0.25]
        near(timeliness(np.array([0.0, 0.25, 1.0]), like=torch.zeros(1).double()), [0.5, 0.437823, 0.268941])

    def test_an_item_of_a_new_class_is_accepted(self):
        bank = CategoryBalancedBank(4, classes=100)
        for number in range(8):
            bank.add(np.array(number), 7, 0.1)
        assert bank.labels.tolist() == [7]
        assert bank.add(np.array(9), 8, 0.1)

    def test_a_reservoir_stays_balanced(self):
        bank = ReservoirBank(10, rng=np.random.default_rng(0))
        for number in range(300):
            bank.add(np.array(number), 0 if number % 50 else 1, 0.1)
        assert bank.labels.tolist().count(1) == 5
        assert bank.seen == {0: 294, 1: 6}

    @pytest.mark.parametrize("make", [lambda: CategoryBalancedBank(3, classes=3), lambda: ReservoirBank(3)])
    def test_a_memory_is_restored_from_its_arrays(self, make):
        bank, other = make(), make()
        for number in range(5):
            bank.add(np.full((2, 2, 3), number, dtype=np.uint8), number % 3, 0.1 * number)
        other.restore(bank.arrays())
        assert {name: value.tolist() for name, value in other.arrays().items()} == {
            name: value.tolist() for name, value in bank.arrays().items()
        }


class TestNorms:
    def setup_method(self):
        self.norm = nn.BatchNorm2d(2).double().eval()
        self.norm.running_mean.copy_(torch.tensor([0.0, 1.0]))
        self.norm.running_var.copy_(torch.tensor([1.0, 4.0]))
        self.model = nn.Sequential(self.norm)
        self.values = torch.arange(16.0).double().view(2, 2, 2, 2) / 4

    def output(self, rule, values=None):
        with normalise_with(self.model, rule), torch.no_grad():
            return self.model(self.values if values is None else values)

    def test_an_instance_is_corrected_where_it_is_far_away(self):
        found = self.output(InstanceNorm(1.0))
        near(found[0, 0].flatten(), [0, 0.260547, 0.521093, 0.781640])
        near(found[1, 1].flatten(), [0.340451, 0.476631, 0.612812, 0.748992])

    def test_maps_of_one_pixel_are_normalised_by_stored_statistics(self):
        values = self.values[:, :, :1, :1]
        near(self.output(InstanceNorm(0.001), values), self.model(values).detach(), 1e-12)

    def test_one_value_per_channel_has_no_variance(self):
        rule = FollowingNorm(0.5)
        self.output(rule, self.values[:1, :, :1, :1])
        assert list(rule.starved) == ["0"]

    def test_rules_replace_the_pass_of_pytorch_and_end_with_their_context(self, monkeypatch):
        passes = []
        monkeypatch.setattr(nn.BatchNorm2d, "forward", lambda norm, given: passes.append(given) or given)
        with normalise_with(self.model, FollowingNorm(0.5)):
            with normalise_with(self.model, lambda name, norm, given: given + 1):
                assert torch.equal(self.model(self.values), self.values + 1)
            assert not torch.equal(self.model(self.values), self.values)
        assert not passes
        assert torch.equal(self.model(self.values), self.values)
        with normalise_with(self.model, lambda name, norm, given: None):
            self.model(self.values)
        assert len(passes) == 2
        assert "forward" not in vars(self.norm)

    @pytest.mark.parametrize("rule", [FollowingNorm(0.5), InstanceNorm(0.3), InstanceNorm(0.3, 0.1)])
    def test_the_outputs_are_the_same_bits_with_and_without_gradients(self, rule):
        given, kept = self.values.float(), self.norm.float().state_dict()
        before = {name: value.clone() for name, value in kept.items()}
        without = self.output(rule, given)
        self.norm.load_state_dict(before)
        with normalise_with(self.model, rule):
            assert torch.equal(self.model(given), without)


def test_a_class_keeps_its_features_of_lowest_entropy_and_of_equals_the_earlier():
    labels, doubts = torch.tensor([1, 0, 1, 1, 3, 1]), torch.tensor([0.5, 0.9, 0.2, 0.2, 0.1, 0.2])
    supports = {"features": torch.arange(6), "labels": labels, "doubts": doubts}
    assert most_confident(supports, 2)["features"].tolist() == [1, 2, 3, 4]
    assert most_confident(supports, 0)["features"].tolist() == [1, 2, 3, 5, 0, 4]
