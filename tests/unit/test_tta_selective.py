"""Members that choose samples, keep memories or move heads, number by number on networks computed by hand."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from adaptation_factory import NETWORKS, labels_of, prepared
from torch import nn
from tta_factory import STREAM, Nt, four, frames, near, state_of

from driftlab.platform.adaptation.ace import Ace, restyle, styles
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.bufr import Bufr, divergence, instability, soft_counts
from driftlab.platform.adaptation.conda import ConDa
from driftlab.platform.adaptation.cotta import CoTta
from driftlab.platform.adaptation.cua import Cua
from driftlab.platform.adaptation.eata import Eata
from driftlab.platform.adaptation.lame import Lame
from driftlab.platform.adaptation.neo import Neo
from driftlab.platform.adaptation.note import Note
from driftlab.platform.adaptation.objectives import covariance_distance, mean_discrepancy
from driftlab.platform.adaptation.rotta import RoTta
from driftlab.platform.adaptation.run import LearningRun
from driftlab.platform.adaptation.sar import Sar
from driftlab.platform.adaptation.shot import Shot
from driftlab.platform.adaptation.t3a import T3a, most_confident, templates_of
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import FAMILIES, member_class
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, SEGMENTATION

HAND = {"momentum": 0.0, "learning_rate": 0.1, "entropy_margin": 0.9}


class TestEata:
    MEMBER = Eata(optimiser="sgd", redundancy_margin=0.05, **HAND)

    def test_one_step_and_nothing_new_in_the_same_batch(self):
        model, member = Nt(), self.MEMBER
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        near(model.norm.weight.detach(), [1.071319, 1.031629, 0.983810])
        near(model.norm.bias.detach(), [0.071415, 0.029657, -0.023049])
        near(done.state.held["mean"], [0.499686, 0.161860, 0.338454])
        assert done.accepted == 0.75
        before = state_of(model)
        again = member.adapt(model, done.state, four(), STREAM)
        assert again.accepted == again.iterations == 0
        assert again.skipped
        assert again.passes == replace(done.passes, backward=())
        assert again.state.held["mean"].tobytes() == done.state.held["mean"].tobytes()
        assert state_of(model) == before

    def test_importance_holds_the_weights(self):
        moved = []
        for importance in (0.0, 1e6):
            model, member = Nt(), Eata(learning_rate=1e-3, entropy_margin=0.9, redundancy_margin=1.0)
            pack = {name: np.full(3, importance) for name in ("norm.weight", "norm.bias")}
            state = member.prepare(model, pack)
            for _ in range(20):
                state = member.adapt(model, state, four(), STREAM).state
            moved.append(float((model.norm.weight.detach() - 1).abs().max()))
        assert moved[1] < 0.2 * moved[0]

    def test_pixels_are_chosen_one_by_one(self):
        model, member = NETWORKS["tiny"][1]().eval(), Eata(entropy_margin=1.0, redundancy_margin=1.0)
        with torch.no_grad():
            model.head.weight.mul_(40)
        narrow, batch = replace(member, entropy_margin=0.7), frames(2, task=SEGMENTATION)
        done = narrow.adapt(model, member.prepare(model), batch, STREAM)
        assert 0 < done.accepted < 1
        assert done.accepted * 2 * 16 * 24 == pytest.approx(round(done.accepted * 2 * 16 * 24))

    def test_the_summary_is_what_the_network_was_built_on(self):
        model = NETWORKS["tiny_classifier"][1]().eval()
        pack = prepared(Eata(), model).pack
        assert set(pack) == {
            f"{norm}.{own}" for norm in ("first.1", "deep.0.1", "deep.1.1", "deep.2.1") for own in ("weight", "bias")
        }
        assert all(np.all(value >= 0) for value in pack.values())
        assert sum(float(value.sum()) for value in pack.values()) > 0


class TestSar:
    def test_one_step(self):
        model, member = Nt(), Sar(frozen_norm_share=0.0, **HAND)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        near(model.norm.weight.detach(), [1.053983, 1.021998, 0.981503])
        near(model.norm.bias.detach(), [0.054950, 0.017922, -0.023606])
        near(done.state.held["average"], 0.638674)
        assert done.passes.forward == done.passes.backward == (4, 4)

    def test_nothing_sure_teaches_nothing(self):
        model, member = Nt(), Sar(entropy_margin=1e-9)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        assert done.accepted == 0
        assert "average" not in done.state.held
        assert done.passes == replace(done.passes, forward=(4,), backward=())

    def test_a_collapse_returns_to_the_source(self):
        model, member = Nt(), Sar(reset_threshold=2.0, **HAND)
        before = state_of(model)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        assert done.iterations == 1
        assert state_of(model) == before
        assert "average" not in done.state.held
        assert done.state.steps == 0
        kept = replace(member, recovery="released").adapt(model, member.prepare(model), four(), STREAM)
        near(kept.state.held["average"], 0.638674, 0.05)

    def test_the_last_quarter_of_the_norms_stays(self):
        model = NETWORKS["tiny_classifier"][1]().eval()
        names = Sar().scope(model)
        assert len(names) == 6
        assert not any(name.startswith("deep.2") for name in names)


class TestCoTta:
    def test_without_views_and_returns_the_first_gradient_is_nothing(self):
        model, member = Nt(), CoTta(restore_prob=0.0, views="none")
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        near(done.losses, [0.721258])
        assert all(np.abs(value).max() < 1e-14 for value in done.state.moments[0].values())
        assert done.passes.forward == (4, 4, 4)
        assert done.predictions.tolist() == [0, 0, 0, 2]

    def test_with_certainty_every_weight_of_the_student_returns(self):
        model = NETWORKS["tiny_classifier"][1]().eval()
        member = CoTta(restore_prob=1.0, ema_decay=0.5, learning_rate=0.1)
        state = member.prepare(model)
        start = state.held["other"].tobytes()
        done = member.adapt(model, state, frames(6), STREAM)
        assert done.state.held["other"].tobytes() == start
        assert state_of(model)["head.weight"] != state.source["head.weight"].tobytes()  # the teacher keeps half a step

    def test_views_are_paid_where_they_are_used(self):
        model = NETWORKS["tiny_classifier"][1]().eval()
        for confidence, forward in ((1.0, (6,) * 6), (0.0, (6,) * 3)):
            member = CoTta(confidence_threshold=confidence, augmentations=3)
            done = member.adapt(model, member.prepare(model), frames(6), STREAM)
            assert done.passes.forward == forward
            assert done.passes.backward == (6,)


class TestHeads:
    def test_neo_centres_the_features(self):
        model, member = Nt(), Neo()
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        near(done.state.held["mean"], [0.412996, 0.301604, 0.050269])
        near(model.seen[-1][0], [1.360839, -0.856003, -2.285839])
        near(model.seen[-1][1:3], [[0.491275, 0.641711, 0.202161], [-0.763879, 0.183551, 0.962225]])
        near(model.seen[-1].sum(dim=0), [0, 0, 0], 1e-12)
        again = member.adapt(model, done.state, four(), STREAM)
        near(again.state.held["mean"], done.state.held["mean"], 1e-12)
        assert again.state.held["count"] == 8
        one = member.adapt(model, done.state, replace(four(), images=four().images[:1]), STREAM)
        first = model.inputs[:1].sub(torch.tensor([0.1, -0.2, 0.3]).view(1, 3, 1, 1))
        feature = (first / (torch.tensor([0.5, 1, 2]).view(1, 3, 1, 1) + 1e-5).sqrt()).relu().mean(dim=(2, 3))[0]
        near(one.state.held["mean"], (4 * torch.tensor(done.state.held["mean"]) + feature) / 5)

    def test_t3a_takes_the_surest_features(self):
        member, weight = T3a(features_per_class=2), np.eye(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)).double()
        with torch.no_grad():
            model[1].weight.copy_(torch.tensor(weight))
        state, found = member.prepare(model), []
        for rows in ([[2, 0.5], [0.6, 0.5]], [[0.2, 3], [0.9, 1]]):
            batch = four()
            supports = {key: torch.tensor(value) for key, value in state.held.items()}
            given = torch.tensor(rows, dtype=torch.float64)
            new = {
                "features": given,
                "labels": given.argmax(dim=1),
                "doubts": -(given.softmax(1) * given.log_softmax(1)).sum(1),
            }
            both = {key: torch.cat([supports[key], new[key]]) for key in new}
            supports = most_confident(both, 2, member.features_per_class)
            found.append((given @ templates_of(supports, 2).T).tolist())
            state = replace(state, held={key: value.numpy() for key, value in supports.items()})
        assert batch.labels is None
        near(found[0], [[2.046107, 0.5], [0.656596, 0.5]])
        near(found[1], [[0.565051, 3.004994], [1.015440, 1.029396]])

    def test_t3a_moves_the_head_and_nothing_else(self):
        model, member = NETWORKS["tiny_classifier"][1]().eval(), T3a()
        before = state_of(model)
        done = member.adapt(model, member.prepare(model), frames(8), STREAM)
        after = state_of(model)
        assert {name for name in before if before[name] != after[name]} == {"head.weight", "head.bias"}
        near(model.head.weight.detach().norm(dim=1)[model.head.weight.detach().norm(dim=1) > 0], 1, 1e-5)
        assert done.passes == Passes((8,), (), (), done.passes.kept_bytes)


LIKE = torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [0.6, 0.5]], dtype=torch.float64)
UNSURE = torch.tensor([[2, 0, 0], [0.2, 0.3, 0], [0, 2, 0], [0, 0.3, 0.2], [0.1, 0.2, 0.15]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("affinity", "labels", "last"),
    [
        ("knn", [0, 0, 1, 1, 0], [0.640619, 0.189378, 0.170002]),
        ("rbf", [0, 0, 1, 1, 1], [0.312377, 0.357422, 0.330201]),
        ("linear", [0, 0, 1, 1, 1], [0.305740, 0.605549, 0.088712]),
    ],
)
def test_lame_makes_neighbours_agree(affinity, labels, last):
    found = Lame(affinity=affinity, neighbours=2).refine(LIKE, UNSURE)
    assert found.argmax(dim=1).tolist() == labels
    near(found[-1], last, 2e-5)
    if affinity == "knn":
        near(found[:2], [[0.905243, 0.049126, 0.045631], [0.659860, 0.197289, 0.142851]], 2e-5)
        near(found[2:4], [[0.137604, 0.783332, 0.079065], [0.297691, 0.488111, 0.214198]], 2e-5)


class TestBufr:
    def test_soft_counts_and_their_distance(self):
        values = torch.arange(6).double()[:, None] / 5
        low, ranges = values.amin(dim=0), values.amax(dim=0) + 1e-8
        source, target = (soft_counts(times * values, low, ranges, 0.01) for times in (1, 1.5))
        half = [0.499999, 0.500548, 0.992764, 0.082544, 0.924145]
        near(source[0], [*half, *reversed(half)])
        near(target[0, :5], [0.499999, 0.499999, 0.006691, 0.992762, 0.000591])
        near(target[0, 5:], [0.924103, 0.075855, 0.075855, 0.924103, 2.000042])
        near(instability(source / 6, target / 6), [1.352402])
        near(divergence(target / 6, source / 6), [0.403066])
        assert float(instability(source, source)) == 0

    def test_without_a_summary_nothing_is_learned(self):
        model, member = Nt(), Bufr()
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        assert "no summary" in done.skipped
        assert done.passes == Passes()

    def test_parts_join_from_the_bottom_and_the_head_stays(self):
        model, member = NETWORKS["tiny_classifier"][1]().eval(), Bufr(iterations=2)
        before, state = state_of(model), prepared(member, model)
        done = member.adapt(model, state, frames(8), Phase(iterations=1))
        first = {name for name, value in state_of(model).items() if value != before[name] and "running" not in name}
        assert all(name.startswith("first.") for name in first if "num_batches" not in name)
        assert done.iterations == 1
        done = member.adapt(model, done.state, frames(8), Phase())
        after = state_of(model)
        assert done.iterations == 4  # of two parts before the head
        assert before["head.weight"] == after["head.weight"]
        assert before["deep.0.0.weight"] != after["deep.0.0.weight"]

    def test_each_part_that_joins_slows_the_steps(self, monkeypatch):
        model, member = (
            NETWORKS["tiny_classifier"][1]().eval(),
            Bufr(iterations=2, learning_rate=0.3, block_lr_divisor=3.0),
        )
        state, bound, bind = prepared(member, model), [], LearningRun.bind

        def note(run, names, rule):
            bound.append((run.made, set(names), rule.learning_rate))
            bind(run, names, rule)

        monkeypatch.setattr(LearningRun, "bind", note)
        member.adapt(model, state, frames(8), Phase())
        (first, below, fast), (second, both, slow) = bound
        assert (first, second) == (0, 2) and below < both
        assert (fast, slow) == pytest.approx((0.3, 0.1))

    def test_an_explosion_is_undone(self):
        model, member = NETWORKS["tiny_classifier"][1]().eval(), Bufr()
        state = prepared(member, model)
        with torch.no_grad():
            model.head.weight.mul_(1e4)
        before = state_of(model)
        done = member.adapt(model, state, frames(8), STREAM)
        assert "times the largest of the source" in done.skipped
        assert state_of(model) == before


class TestAce:
    def test_a_restyled_frame_has_the_requested_style(self):
        images = np.random.default_rng(0).integers(90, 160, (3, 6, 5, 3), dtype=np.uint8)
        wanted = styles(images)[::-1] * [[[1.0]], [[0.5]], [[1.2]]]
        near(styles(restyle(images, wanted)), wanted, 1e-4)
        near(restyle(images, styles(images)), images, 1e-4)

    def test_it_learns_both_and_remembers_a_style_per_phase(self):
        model, member = NETWORKS["tiny_classifier"][1]().eval(), Ace(iterations=3, batch=5)
        state = prepared(member, model)
        for number in range(1, 3):
            done = member.adapt(model, state, frames(8, number), Phase())
            state = done.state
            assert state.held["styles"].shape == (number, 2, 3)
        assert done.passes.forward == done.passes.backward == (5,) * 6


class TestReplay:
    def test_distances_of_features(self):
        source = torch.tensor([[0.0, 0], [1, 0], [0, 1]], dtype=torch.float64)
        near(mean_discrepancy(source, source + 2), 5.275644)
        near(mean_discrepancy(source, source), 0, 1e-12)
        near(covariance_distance(source, 2 * source), 0.15625)

    def test_conda_without_mixing_and_samples_is_shot(self):
        ours, theirs = (NETWORKS["tiny_classifier"][1]().eval() for _ in range(2))
        member, shot = ConDa(mixup_alpha=0.0, replay_per_class=0, iterations=6), Shot(cls_par=1.0, iterations=6)
        state, other = member.prepare(ours), shot.prepare(theirs)
        for number in range(2):
            state = member.adapt(ours, state, frames(12, number), Phase()).state
            other = shot.adapt(theirs, other, frames(12, number), Phase()).state
        assert state_of(ours) == state_of(theirs)

    def test_conda_mixes_frames_and_labels_by_the_same_shares(self):
        model, rows, labels = NETWORKS["tiny_classifier"][1]().eval(), np.arange(6), torch.arange(6) % 4
        taught = []
        for weight in (1.0, 0.0):
            member = ConDa(cls_par=weight)
            run = LearningRun(member, model, member.prepare(model), frames(6), Phase())
            taught.append(float(member.loss(run, rows, labels).detach()))
        batch = frames(6)
        inputs, partner = to_input(batch.images), batch.rng.permutation(6)
        share = torch.tensor(batch.rng.beta(1.0, 1.0, 6), dtype=torch.float32)
        logs = model(share.view(-1, 1, 1, 1) * inputs + (1 - share).view(-1, 1, 1, 1) * inputs[partner]).log_softmax(1)
        expected = -(share * logs[rows, labels] + (1 - share) * logs[rows, labels[partner]]).mean()
        near(taught[0] - taught[1], expected.detach())

    def test_conda_never_keeps_more_than_its_samples(self):
        model, member = (
            NETWORKS["tiny_classifier"][1]().eval(),
            ConDa(replay_per_class=2, min_confidence=0.0, iterations=2),
        )
        state = member.prepare(model)
        for number in range(3):
            state = member.adapt(model, state, frames(12, number), Phase()).state
            labels = state.held["replay/label"]
            assert max(np.bincount(labels)) <= 2
        assert len(set(state.held["replay/domain"])) > 1

    def test_cua_keeps_a_few_frames_of_each_domain(self):
        model, member = NETWORKS["tiny_classifier"][1]().eval(), Cua(replay_per_domain=3, iterations=2, batch=4)
        state = prepared(member, model)
        for number in range(1, 4):
            done = member.adapt(model, state, frames(12, number), Phase())
            state = done.state
            assert len(state.held["replay/label"]) == 3 * (1 + number)
        assert done.passes.forward[-1] == 3
        assert sum(done.passes.backward) == 2 * (4 + 4)


@pytest.mark.parametrize("member", [RoTta(every_frames=8), Note(every_frames=8)])
def test_a_lesson_comes_when_enough_frames_have_passed(member):
    model = NETWORKS["tiny_classifier"][1]().eval()
    state, made = member.prepare(model), []
    for number in range(4):
        done = member.adapt(model, state, frames(6, number), STREAM)
        made.append(done.iterations)
        assert bool(done.skipped) == (done.iterations == 0)
        state = done.state
    assert made == [0, 1, 1, 1]
    assert pickle.dumps(member.reset(model, state)) == pickle.dumps(member.prepare(NETWORKS["tiny_classifier"][1]()))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES["adaptation"]))
def test_a_member_computes_on_its_tasks_and_skips_others_with_the_reason(name):
    cls = member_class("adaptation", name)
    for task, make in (NETWORKS[network] for network in ("tiny", "tiny_classifier", "tiny_detector")):
        model, member, given = make().eval(), cls(), frames(4, task=task)
        if member.labels == "teacher":
            given = replace(given, labels=labels_of(task, 4, np.random.default_rng(0)))
        done = member.adapt(model, prepared(member, model), given, STREAM if member.stream_batch else Phase(2))
        if task.name in member.tasks:
            assert done.work is None or done.work.forward or name in ("frozen", "lame"), done.skipped
        else:
            assert done.skipped
            assert done.work == Passes()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES["adaptation"]))
def test_over_endless_domains_only_members_that_replay_keep_more_and_more(name):
    """Every phase is another domain; frames or styles of each are kept by those whose pages say so."""
    model, member = NETWORKS["tiny_classifier"][1]().eval(), member_class("adaptation", name)()
    state, sizes = prepared(member, model), []
    for number in range(7):
        given = replace(frames(12, number), domain=number)
        if member.labels == "teacher":
            given = replace(given, labels=labels_of(CLASSIFICATION, 12, given.rng))
        state = member.adapt(model, state, given, STREAM if member.only_on_stream else Phase(1)).state
        sizes.append(len(pickle.dumps(state)))
    growth = (sizes[-1] - sizes[-2], sizes[-2] - sizes[-3])
    assert (min(growth) > 12) == (name in ("ace", "cua", "elasticdnn_cua"))
