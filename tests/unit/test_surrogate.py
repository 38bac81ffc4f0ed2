"""ElasticDNN's master: first surrogates, channel masks for samples, and updates of the master."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scaling_factory import CLASSES, SIZE, problem

from driftlab.errors import RequestError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.module_utils import copy_entries
from driftlab.platform.networks.predict import state_of, to_input
from driftlab.platform.networks.pruning.gating import GatedNetwork, GateSite
from driftlab.platform.networks.pruning.knowledge import MAX_GAP, fixed_links, largest_gap
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION
from driftlab.platform.scaling import elastic
from driftlab.platform.scaling.base import Budget, ChannelMask
from driftlab.platform.scaling.master_training import SourceDomains, information
from driftlab.platform.scaling.surrogate import Surrogate

SMALL, LARGE = Budget(variant=0), Budget(variant=1)


def member(**params) -> Surrogate:
    return Surrogate(keep_ratios=(0.6, 0.3), stages=(0.3,), epochs=1, **{"sources": (), **params})


@cache
def master(knowledge: str = "identity") -> elastic.Master:
    data = problem()
    model = build("tiny_residual", CLASSES, seed=0).eval()
    return member(knowledge=knowledge).build(model, data)


def images(count: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), dtype=np.uint8)


def drafted(seed: int = 0, knowledge: str = "identity") -> tuple[elastic.Master, ChannelMask]:
    one, found = member(), master(knowledge)
    draft = one.select_channels(found, SMALL, images(seed=seed), CLASSIFICATION)
    assert draft is not None
    return one.apply_mask(found, SMALL, draft), draft


def moved(surrogate: torch.nn.Module, seed: int, by: float = 0.01) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in surrogate.parameters():
            value.add_(by * torch.randn(value.shape, generator=generator))
    return surrogate


class TestDrafts:
    @pytest.mark.slow
    def test_a_surrogate_equals_the_gated_master_on_the_most_difficult_frame(self):
        found, draft = drafted()
        gated, frames = found.at_ratio(0), to_input(images())
        with torch.no_grad():
            expected = gated(frames)
            made = member().select(found, SMALL)(frames)
        row = int(elastic.entropies(expected, CLASSIFICATION).argmax())
        assert torch.allclose(made[row], expected[row], atol=1e-5)
        assert not torch.allclose(made, expected, atol=1e-3)
        assert [len(kept) for kept in draft.kept.values()] == [4, 8, 8]

    @pytest.mark.slow
    def test_other_samples_keep_other_channels_and_cost_the_same(self):
        one, (first, _), (second, _) = member(), drafted(0), drafted(5)
        networks = [one.select(found, SMALL) for found in (first, second)]
        assert not np.array_equal(predict_logits(networks[0]), predict_logits(networks[1]))
        assert one.profile(first, SIZE) == one.profile(second, SIZE) == one.profile(master(), SIZE)
        assert one.profile(first, SIZE)[0].cost.macs < one.profile(first, SIZE)[1].cost.macs / 2

    @pytest.mark.slow
    def test_selection_costs_a_pass_through_the_master_and_its_gates(self):
        found, draft = drafted()
        whole = elastic.count_cost(found.network, *SIZE)
        gates = sum(one.weight.numel() for gate in found.gated.gates for one in (gate.squeeze, gate.predict))
        assert sum(layer.macs for layer in draft.work.others) == 12 * (whole.macs + gates)
        assert {layer.name for layer in draft.work.others} >= {f"network.{layer.name}" for layer in whole.layers}
        assert draft.work.kept_bytes == elastic.stored_bytes(found.gated)

    @pytest.mark.slow
    def test_cutting_moves_the_surrogate_and_feedback_mixes_every_layer(self):
        found, _ = drafted()
        links = fixed_links(found.network, found.links, orthogonal=True)
        draft = member().select_channels(copy_with(found, links=links), SMALL, images(), CLASSIFICATION)
        small, whole = (elastic.stored_bytes(one) for one in (member().select(found, SMALL), found.network))
        gates = 4 * sum(len(gate) for gate in draft.gates.values())  # constants, which feedback leaves alone
        (cutting,), (feedback,) = draft.cutting, draft.feedback
        assert (cutting.macs, cutting.input_bytes, cutting.output_bytes) == (0, small - gates, small - gates)
        shapes = [(len(link.entries), link.entries.shape[1]) for link in found.links.values()]
        known, mixing = (4 * sum(sizes) for sizes in ([n * k for n, k in shapes], [n * n for n, _ in shapes]))
        assert feedback.macs == sum(2 * n * n * k for n, k in shapes)
        assert feedback.input_bytes == 2 * (small - gates) + known + 2 * mixing
        assert feedback.output_bytes == known + whole

    @pytest.mark.slow
    @pytest.mark.parametrize("how", [{"sample": "first"}, {"sample": "mean"}, {"filters": "random"}])
    def test_ablations_choose_other_channels(self, how):
        one, (_, usual) = member(**how), drafted()
        draft = one.select_channels(master(), SMALL, images(), CLASSIFICATION)
        assert {name: len(kept) for name, kept in draft.kept.items()} == {
            name: len(kept) for name, kept in usual.kept.items()
        }
        assert any(not np.array_equal(draft.gates[name], usual.gates[name]) for name in usual.gates)

    def test_a_draft_of_another_ratio_or_network_is_refused(self):
        found, draft = drafted()
        with pytest.raises(RequestError, match=r"keeps 4 channels of 'first\.0', not 8"):
            member().apply_mask(found, LARGE, draft)
        with pytest.raises(RequestError, match="of other groups"):
            member().apply_mask(found, SMALL, ChannelMask({"first.0": draft.kept["first.0"]}))

    def test_detection_entropy_is_largest_for_undecided_classes(self):
        outputs = torch.full((3, CLASSES + 4, 2, 2), -9.0)
        outputs[1, :CLASSES] = 0.0
        outputs[2, CLASSES:] = 5.0
        found = elastic.entropies(outputs, DETECTION)
        assert float(found[1]) == pytest.approx(CLASSES * np.log(2))
        assert float(found[0]) == float(found[2]) < 0.1


def predict_logits(network: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return network(to_input(images())).numpy()


class TestStatistics:
    def test_every_keep_ratio_requires_separate_statistics(self):
        found, frames = master(), to_input(problem().train.images)
        small, large = found.statistics
        assert any(not np.array_equal(small[name], large[name]) for name in small)
        swapped = copy_with(found, statistics=(large, small))
        for which in (0, 1):
            seen = []
            for one in (found, swapped):
                gated = one.at_ratio(which)
                hook = (
                    gated.network.deep[1].inner[1].register_forward_hook(lambda *call, seen=seen: seen.append(call[2]))
                )
                with torch.no_grad():
                    gated(frames)
                hook.remove()
            norm = found.network.deep[1].inner[1]
            shift = norm.bias.detach()[:, None, None]
            own, other = (float((one - shift).mean(dim=(0, 2, 3)).abs().mean()) for one in seen)
            assert 2 * own < other  # with its own statistics, the output of a batch norm has mean 0

    def test_a_surrogate_starts_with_the_statistics_of_its_ratio(self):
        found, draft = drafted()
        bare = copy_with(found, statistics=tuple({k: v * 0 + 2 for k, v in s.items()} for s in found.statistics))
        cut = member().apply_mask(bare, SMALL, draft).cuts[0].state
        assert all((cut[name] == 2).all() for name in cut if name.endswith(("running_mean", "running_var")))


def copy_with(found: elastic.Master, **changes) -> elastic.Master:
    return elastic.replace(found, **changes)


class TestFeedback:
    @pytest.mark.slow
    @pytest.mark.parametrize("knowledge", ["identity", "mix_fixed", "reparam", "penalty"])
    def test_layers_equal_their_mixtures_and_an_untrained_surrogate_changes_no_layer(self, knowledge):
        found, _ = drafted(knowledge=knowledge)
        assert largest_gap(found.network, found.links) < MAX_GAP
        again = member().absorb(found, member().select(found, SMALL))
        before, after = state_of(found.gated), state_of(again.gated)
        assert max(np.abs(after[name] - before[name]).max() for name in before) < 1e-6

    def test_channels_outside_the_surrogate_stay(self):
        found, draft = drafted()
        surrogate = moved(member().select(found, SMALL), 1)
        learned = member().absorb(found, surrogate)
        before, after = state_of(found.network), state_of(learned.network)
        kept = draft.kept["deep.1.inner.0"]
        rest = np.setdiff1d(np.arange(28), kept)
        rows, columns = "deep.1.inner.0.weight", "deep.1.outer.0.weight"
        assert np.array_equal(before[rows][rest], after[rows][rest])
        assert np.array_equal(before[columns][:, rest], after[columns][:, rest])
        assert np.allclose(after[rows][kept], surrogate.state_dict()[rows], atol=1e-6)
        assert np.allclose(after[columns][:, kept], surrogate.state_dict()[columns], atol=1e-6)  # its inputs were cut
        scale = "deep.1.inner.1.weight"
        assert np.array_equal(before[scale][rest], after[scale][rest])
        expected = before[scale][kept] + 0.2 * (surrogate.state_dict()[scale].numpy() - before[scale][kept])
        assert np.allclose(after[scale][kept], expected, atol=1e-6)
        for still in [name for name in before if name.startswith("head")]:
            assert np.array_equal(before[still], after[still])
        gates = {name: value for name, value in state_of(found.gated).items() if name.startswith("gates")}
        assert all(np.array_equal(value, state_of(learned.gated)[name]) for name, value in gates.items())

    @pytest.mark.parametrize(
        ("scope", "changed"),
        [("all", {"first.1", "deep.1.inner.1"}), ("gated", {"deep.1.inner.1"}), ("trained", {"first.1"})],
    )
    def test_batch_norms_are_fed_back_within_their_scope(self, scope, changed):
        """Statistics move in a norm behind no gate, and in a gated one; only the first has a trained scale."""
        found, _ = drafted()
        surrogate = member().select(found, SMALL)
        ungated = "deep.0.outer.1"
        for norm in (ungated, "deep.1.inner.1"):
            surrogate.get_buffer(f"{norm}.running_mean").add_(1.0)
        with torch.no_grad():
            surrogate.get_parameter(f"{ungated}.weight").add_(1.0)
        learned = elastic.feed_back(found, surrogate, 1.0, 0.5, scope)
        moved_norms = {
            name.rpartition(".")[0]
            for name, before in found.statistics[0].items()
            if not np.array_equal(before, learned.statistics[0][name])
        }
        assert moved_norms == {ungated if norm == "first.1" else norm for norm in changed}
        scales = state_of(found.network), state_of(learned.network)
        assert np.array_equal(*(each[f"{ungated}.weight"] for each in scales)) == (scope == "gated")

    def test_statistics_update_those_of_their_ratio_only(self):
        found, draft = drafted()
        surrogate = member().select(found, SMALL)
        name, kept = "first.1.running_mean", draft.kept["first.0"]
        surrogate.get_buffer(name).add_(1.0)
        learned = member().absorb(found, surrogate)
        change = learned.statistics[0][name] - found.statistics[0][name]
        assert np.allclose(change[kept], 0.2, atol=1e-6)
        assert np.count_nonzero(change) == len(kept)
        assert learned.statistics[1] is found.statistics[1]

    @pytest.mark.slow
    def test_thirty_feedbacks_stay_bounded(self):
        one, found = member(), master("mix_fixed")
        name, total = "deep.1.inner.0.weight", 0.0
        first = float(np.linalg.norm(state_of(found.network)[name]))
        for number in range(30):
            draft = one.select_channels(found, SMALL, images(4, seed=number), CLASSIFICATION)
            found = one.apply_mask(found, SMALL, draft)
            surrogate = one.select(found, SMALL)
            before = copy_entries(surrogate, [name])[name]
            found = one.absorb(found, moved(surrogate, number, 0.05))
            total += float(np.linalg.norm(copy_entries(surrogate, [name])[name] - before))
        after = float(np.linalg.norm(state_of(found.network)[name]))
        assert after <= first + total + 1e-4
        assert np.isfinite(predict_logits(one.select(found, SMALL))).all()

    def test_a_network_of_another_family_is_refused(self):
        with pytest.raises(RequestError, match="none of the master's 2 surrogates"):
            member().absorb(master(), build("tiny_residual", CLASSES, seed=0))


class TestSourceDomainsAndGates:
    @pytest.mark.slow
    @pytest.mark.parametrize("params", [
        {"gates": "domain", "sample": "mean", "sources": ("inversion", "gaussian_noise")},
        {"gates": "static"},
        {"gates": "frozen", "sources": ("inversion",)},
        {"gates": "random", "ungated": 1},
    ])  # fmt: skip
    def test_every_kind_is_built_cut_stored_and_restored(self, params):
        one, model = member(**params), build("tiny_residual", CLASSES, seed=0).eval()
        found = one.build(model, problem())
        again = one.restore(model, one.store(found), SIZE)
        assert len(found.gated.sites) == 3 - params.get("ungated", 0)
        masks = [one.select_channels(each, SMALL, images(), CLASSIFICATION) for each in (found, again)]
        for group, kept in masks[0].kept.items():
            assert np.array_equal(kept, masks[1].kept[group])
            assert np.array_equal(masks[0].gates[group], masks[1].gates[group])
        frames = to_input(images())
        assert torch.equal(one.select(found, SMALL)(frames), one.select(again, SMALL)(frames))

    @pytest.mark.slow
    def test_channels_by_weights_and_of_the_source_do_not_follow_the_samples(self):
        for params in ({"filters": "l1"}, {"recut": False}):
            one = member(**params)
            kept = [one.select_channels(master(), SMALL, images(seed=seed), CLASSIFICATION).kept for seed in (0, 5)]
            assert all(np.array_equal(kept[0][group], kept[1][group]) for group in kept[0])
        current = master().cuts[0].kept
        assert all(np.array_equal(kept[0][group], current[group]) for group in current)

    def test_a_batch_has_frames_of_several_domains_in_groups(self):
        rows = np.arange(40)
        pictures = tuple(np.full((40, 2, 2, 3), 10 * domain, np.uint8) + rows[:, None, None, None].astype(np.uint8)
                         for domain in range(3))  # fmt: skip
        domains = SourceDomains(pictures)
        frames, used = domains.batch(rows[:35], np.random.default_rng(0))
        assert used.tolist() == rows[:32].tolist()
        of = (frames[:, 0, 0, 0] - used) // 10
        assert all(len(set(group)) == 1 for group in of.reshape(-1, 8).tolist())
        assert set(of.tolist()) == {0, 1, 2}
        assert len(domains.every()) == 40
        alone = SourceDomains(pictures[:1])
        assert np.array_equal(alone.batch(rows[:35], np.random.default_rng(0))[1], rows[:35])

    @pytest.mark.slow
    def test_a_small_batch_has_frames_of_several_domains_too(self):
        built = member(sources=("snow",), gates="domain", batch=14).build(
            build("tiny_residual", CLASSES, seed=0), problem()
        )
        assert len(built) == 2

    def test_information_is_high_for_opposite_domains_and_zero_for_equal_ones(self):
        network = master_of_two_domains()
        opposite, equal = torch.tensor([[1.0, 0.0] * 3, [0.0, 1.0] * 3]), torch.tensor([[1.0, 0.0] * 3] * 2)
        group = network.sites[0].group
        kept = 1 / (1 + np.exp(-0.5 / (0.3 * np.std([1, 0] * 3, ddof=1))))  # soft membership of a channel with gate 1
        left = -(kept * np.log2(kept) + (1 - kept) * np.log2(1 - kept))
        assert information(network, {group: opposite}).item() == pytest.approx(1 - left, abs=1e-4)
        assert information(network, {group: equal}).item() == pytest.approx(0, abs=1e-6)

    def test_unknown_source_domains_are_refused(self):
        assert "no shift" in Surrogate(sources=("fogg",)).faults()[0]


def master_of_two_domains() -> GatedNetwork:
    network = GatedNetwork(torch.nn.Sequential(torch.nn.Conv2d(3, 6, 1), torch.nn.BatchNorm2d(6)),
                           [GateSite("0", "0", "1", torch.arange(6))])  # fmt: skip
    network.ratio = 0.5
    return network
