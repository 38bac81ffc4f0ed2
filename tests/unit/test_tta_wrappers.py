"""Policies that wrap a member: when it learns, and when it returns to the source."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from adaptation_factory import NETWORKS
from tta_factory import STREAM, SineNet, frames, near, outputs, state_of

from driftlab.errors import RequestError
from driftlab.platform.adaptation.asr import Asr
from driftlab.platform.adaptation.norms import mix_statistics
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.adaptation.rdumb import RDumb
from driftlab.platform.adaptation.snap import Snap
from driftlab.platform.adaptation.sparse import SparseUpdates
from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.module_utils import normalise_by_batch


def network():
    return NETWORKS["tiny_classifier"][1]().eval()


def run(member, jobs: int, first: int = 0):
    """Train a member on numbered batches; return the network after each, and the results."""
    model, after, done = network(), [], []
    state = member.prepare(model)
    for number in range(first, first + jobs):
        done.append(member.adapt(model, state, frames(8, number), STREAM))
        state = done[-1].state
        after.append(state_of(model))
    return after, done


class TestRDumb:
    def test_a_job_is_that_of_a_run_begun_at_the_last_return(self):
        after, done = run(RDumb(member="tent", member_params=("learning_rate=0.1",), reset_steps=3), 7)
        fresh, begun = run(Tent(learning_rate=0.1), 2, first=3)
        source = state_of(network())
        assert after[2] == after[5] == source
        assert after[3:5] == fresh
        assert [one.predictions.tolist() for one in done[3:5]] == [one.predictions.tolist() for one in begun]
        assert done[2].changed.any()
        assert not done[2].skipped


class TestSparseUpdates:
    def test_it_trains_on_every_second_batch_until_the_budget_is_used(self):
        after, done = run(SparseUpdates(member="tent", every_batches=2, budget=2), 6)
        assert [one.iterations for one in done] == [1, 0, 1, 0, 0, 0]
        assert after[0] == after[1] != after[2] == after[5]
        assert [one.passes for one in done if not one.iterations] == [Passes()] * 4
        assert "2 batches" in done[1].skipped
        assert "2 steps" in done[5].skipped

    def test_every_batch_without_an_end_is_the_member(self):
        assert run(SparseUpdates(member="tent", every_batches=1), 4)[0] == run(Tent(), 4)[0]


class TestAsr:
    def test_the_retained_share_falls_with_depth(self):
        shares = [Asr().share(depth) for depth in (0, 0.01, 0.02, 0.025)]
        assert shares == pytest.approx([0.5, 0.3, 0.1, 0])

    def test_the_spread_of_a_batch(self):
        model = SineNet()
        with normalise_by_batch(model, keeps=False):
            near(entropies(outputs(model).mean(dim=0)[None]), [1.098161], 1e-6)

    def test_a_policy_that_always_triggers_returns_with_every_job(self):
        member = Asr(member="tent", member_params=("learning_rate=0.1",), start=1.0, keep=0.0)
        after, done = run(member, 3)
        assert after == [state_of(network())] * 3
        assert [one.iterations for one in done] == [1, 1, 1]
        assert done[0].state.inner.steps == 0

    def test_a_slight_collapse_leaves_the_first_tensors(self):
        member = Asr(member="tent", member_params=("learning_rate=0.1",), start=1.0, keep=0.5, reset_slope=0.0)
        after, source = run(member, 1)[0][0], state_of(network())
        assert after["first.1.weight"] != source["first.1.weight"]
        assert after["deep.2.1.weight"] == source["deep.2.1.weight"]

    def test_without_a_collapse_the_threshold_follows_and_the_source_passes_are_charged(self):
        done = run(Asr(member="tent", start=0.3), 2)[1]
        assert done[0].passes.forward == (8, 8)
        first = np.log(4 * 0.3)
        assert float(done[0].state.held["threshold"]) > first
        assert done[0].state.inner.steps == 1


class TestSnap:
    def test_statistics_are_corrected_where_they_are_far_away(self):
        stored, seen = ((torch.tensor([a]), torch.tensor([b])) for a, b in ((0.0, 1.0), (0.5, 1.6)))
        near(mix_statistics(stored, seen, 64, 4.0), [[0], [1]], 1e-6)
        near(mix_statistics(stored, seen, 64, 1.0), [[0.375], [1.421826]], 1e-6)

    def test_it_trains_on_the_memory_of_confident_frames(self):
        after, done = run(Snap(member="tent", every_batches=2, capacity=10, confidence=0.0), 4)
        assert [one.iterations for one in done] == [0, 1, 0, 1]
        assert done[0].passes == Passes((8,), kept_bytes=done[0].passes.kept_bytes)
        assert done[1].passes.forward == (8, 10, 10)  # the batch, the training batch, the statistics
        assert done[1].passes.backward == (10,)
        assert len(done[3].state.held["label"]) == 10
        assert after[0] == state_of(network()) != after[1]

    def test_the_memory_is_that_of_the_published_algorithm(self):
        """Add, then remove the farthest frame of the most frequent class; move the centre after the batch."""
        rng, member = np.random.default_rng(0), Snap(member="tent", capacity=6, confidence=0.4)
        state, kept, centre = member.prepare(network()), [], None
        for number in range(12):
            batch, shares = frames(5, number), rng.dirichlet(np.ones(3), 5)
            places = rng.uniform(0.1, 2, (5, 2, 4))
            state, share = member._remember(state, batch, shares, places)
            centre = places.mean(axis=0) if centre is None else centre
            for n in np.flatnonzero(shares.max(axis=1) > 0.4):
                kept.append((number, n, int(shares[n].argmax()), places[n]))
                if len(kept) > 6:
                    of_class = [sum(one[2] == label for one in kept) for label in range(3)]
                    leaves = kept[-1][2] if of_class[kept[-1][2]] == max(of_class) else int(np.argmax(of_class))

                    def gap(one, centre=centre):
                        deviations = np.sqrt(one[3][1]) - np.sqrt(centre[1])
                        return np.sqrt(((one[3][0] - centre[0]) ** 2).sum() + (deviations**2).sum())

                    kept.remove(max((one for one in kept if one[2] == leaves), key=gap))
            centre = 0.1 * centre + 0.9 * places.mean(axis=0)
            expected = [frames(5, job).images[n] for job, n, *_ in kept]
            assert np.array_equal(state.held["image"], np.stack(expected))
            near(state.held["middle"], centre, 1e-12)
            assert share == (shares.max(axis=1) > 0.4).mean()

    def test_unsure_frames_stay_outside(self):
        done = run(Snap(member="tent", every_batches=1, confidence=1.0), 2)[1]
        assert [one.accepted for one in done] == [0, 0]
        assert all(one.iterations == 0 for one in done)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"member": "tnet"}, "tnet"),
        ({"member": "distill"}, "without labels"),
        ({"member": "frozen"}, "on the stream"),
        ({"member_params": ("entropy_margin",)}, "name=value"),
        ({"member_params": ("entropy_margin=2",)}, "entropy_margin"),
        ({"member_params": ("speed=2",)}, "speed"),
    ],
)
@pytest.mark.parametrize("name", ["rdumb", "asr", "snap", "sparse"])
def test_members_that_cannot_be_wrapped_are_refused(name, params, message):
    with pytest.raises(RequestError, match=message):
        Member("adaptation", name, tuple(params.items())).make()


def test_a_policy_trains_online_as_its_member_does():
    member = Member(
        "adaptation", "asr", (("member", "rotta"), ("member_params", ("stream_batch=7", "training_runs=concurrent")))
    ).make()
    assert (member.stream_batch, member.training_runs, member.predict_on, member.has_source_summary) == (
        7,
        "concurrent",
        "frame",
        False,
    )
    assert member.tasks == ("classification",)
