"""Members that select samples, keep memories or move heads, on networks computed by hand."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from adaptation_factory import NETWORKS, labels_of, prepared
from tta_factory import STREAM, SineNet, four, frames, near, state_of

from driftlab.platform.adaptation.ace import Ace, restyle, styles
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.bufr import Bufr
from driftlab.platform.adaptation.conda import ConDa
from driftlab.platform.adaptation.cotta import CoTta
from driftlab.platform.adaptation.eata import Eata
from driftlab.platform.adaptation.lame import Lame
from driftlab.platform.adaptation.neo import Neo
from driftlab.platform.adaptation.note import Note
from driftlab.platform.adaptation.objectives import covariance_distance, mean_discrepancy
from driftlab.platform.adaptation.rotta import RoTta
from driftlab.platform.adaptation.sar import Sar
from driftlab.platform.adaptation.shot import Shot
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import FAMILIES, member_class
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, SEGMENTATION

HAND = {"momentum": 0.0, "learning_rate": 0.1, "entropy_margin": 0.9}


class TestEata:
    MEMBER = Eata(optimiser="sgd", redundancy_margin=0.05, **HAND)

    def test_one_step_and_no_second_one_in_the_same_batch(self):
        model, member = SineNet(), self.MEMBER
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

    def test_pixels_are_chosen_one_by_one(self):
        model, member = NETWORKS["tiny"][1]().eval(), Eata(entropy_margin=1.0, redundancy_margin=1.0)
        with torch.no_grad():
            model.head.weight.mul_(40)
        narrow, batch = replace(member, entropy_margin=0.7), frames(2, task=SEGMENTATION)
        done = narrow.adapt(model, member.prepare(model), batch, STREAM)
        assert 0 < done.accepted < 1
        assert done.accepted * 2 * 16 * 24 == pytest.approx(round(done.accepted * 2 * 16 * 24))


class TestSar:
    def test_one_step(self):
        model, member = SineNet(), Sar(frozen_norm_share=0.0, **HAND)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        near(model.norm.weight.detach(), [1.053983, 1.021998, 0.981503])
        near(model.norm.bias.detach(), [0.054950, 0.017922, -0.023606])
        near(done.state.held["average"], 0.638674)
        assert done.passes.forward == done.passes.backward == (4, 4)

    def test_frames_without_confidence_train_no_step(self):
        model, member = SineNet(), Sar(entropy_margin=1e-9)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        assert done.accepted == 0
        assert "average" not in done.state.held
        assert done.passes == replace(done.passes, forward=(4,), backward=())

    def test_a_collapse_returns_to_the_source(self):
        model, member = SineNet(), Sar(reset_threshold=2.0, **HAND)
        before = state_of(model)
        done = member.adapt(model, member.prepare(model), four(), STREAM)
        assert done.iterations == 1
        assert state_of(model) == before
        assert "average" not in done.state.held
        assert done.state.steps == 0
        kept = replace(member, recovery="released").adapt(model, member.prepare(model), four(), STREAM)
        near(kept.state.held["average"], 0.638674, 0.05)


class TestCoTta:
    def test_without_views_and_restoration_the_first_gradient_is_zero(self):
        model, member = SineNet(), CoTta(restore_prob=0.0, views="none")
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

    def test_views_are_charged_where_they_are_used(self):
        model = NETWORKS["tiny_classifier"][1]().eval()
        for confidence, forward in ((1.0, (6,) * 6), (0.0, (6,) * 3)):
            member = CoTta(confidence_threshold=confidence, augmentations=3)
            done = member.adapt(model, member.prepare(model), frames(6), STREAM)
            assert done.passes.forward == forward
            assert done.passes.backward == (6,)


class TestHeads:
    def test_neo_centres_the_features(self):
        model, member = SineNet(), Neo()
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
    def test_without_a_summary_no_step_is_trained(self):
        model, member = SineNet(), Bufr()
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

    def test_it_trains_on_both_and_stores_a_style_per_phase(self):
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


@pytest.mark.parametrize("member", [RoTta(every_frames=8), Note(every_frames=8)])
def test_training_starts_when_enough_frames_have_passed(member):
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
        done = member.adapt(model, prepared(member, model), given, STREAM if member.learns_on_stream else Phase(2))
        if task.name in member.tasks:
            assert done.passes is None or done.passes.forward or name in ("frozen", "lame"), done.skipped
        else:
            assert done.skipped
            assert done.passes == Passes()


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
