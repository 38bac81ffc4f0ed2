"""On-device training from samples that stay on the device: its triggers and its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stream_factory import CLASSES, FIXED, HEIGHT, WIDTH, between, real_app, stream, weights

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.core.records import Stored, StreamStatistics
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import state
from driftlab.platform.networks.predict import predict
from driftlab.platform.sim.experts import ExpertStore
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.setting import StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Seen, StreamFacts
from driftlab.platform.streaming.on_device import Learned, OnDevice
from driftlab.platform.streaming.wire.samples import CODECS, pack
from driftlab.platform.world.link import MessageDamage

SESSION = StreamFacts(fps=2.0, duration_s=60.0)
TIMES_S = (10.5, 11.5, 12.5, 13.5)  # one frame per second, of two


def plan(seen: Seen, state: Learned | None = None, **params: Any) -> Sampling:
    found = OnDevice(period_s=4.0, rate_fps=1.0, **params).plan_uplink(state or Learned(), SESSION, 10.0, seen)
    assert found is not None
    return found


class TestTriggers:
    @pytest.mark.parametrize("seen", [Seen(), Seen(4, 0.9, 9.0, 1)])
    def test_the_period_samples_under_any_statistics(self, seen):
        found = plan(seen)
        assert (found.times_s, found.send_s, found.next_s) == (TIMES_S, 14.0, None)
        assert not OnDevice().uses_statistics

    @pytest.mark.parametrize("trigger", ["entropy", "distance"])
    @pytest.mark.parametrize(("value", "samples"), [(None, False), (0.29, False), (0.3, True), (1.0, True)])
    def test_a_statistic_samples_from_the_threshold_on(self, trigger, value, samples):
        found = plan(Seen(4, **{trigger: value}), trigger=trigger, threshold=0.3)
        assert found.times_s == (TIMES_S if samples else ())
        assert found.send_s == 14.0
        assert OnDevice(trigger=trigger).uses_statistics

    def test_the_other_measure_takes_no_sample(self):
        assert plan(Seen(4, entropy=1.0), trigger="distance").times_s == ()
        assert plan(Seen(4, distance=1.0), trigger="entropy").times_s == ()

    @pytest.mark.parametrize(
        ("before", "now", "samples"), [(None, 0, True), (0, 0, False), (0, 1, True), (1, None, False)]
    )
    def test_another_domain_samples(self, before, now, samples):
        assert plan(Seen(4, domain=now), Learned(before), trigger="domain").times_s == (TIMES_S if samples else ())

    def test_a_domain_is_sampled_once_before_its_phase(self):
        """The phase that begins at 14 s has the domain's number; a check then would sample it again."""
        assert plan(Seen(4, domain=1), Learned(0), trigger="domain").next_s == 18.0
        assert plan(Seen(4, domain=0), Learned(0), trigger="domain").next_s is None

    @pytest.mark.parametrize(("sampled", "once", "samples"), [(1, True, False), (1, False, True), (0, True, True)])
    def test_a_long_phase_is_not_repeated_with_once(self, sampled, once, samples):
        """Domain 1 was sampled, and its phase still runs."""
        found = plan(Seen(4, domain=1, state=sampled), Learned(0), trigger="domain", once=once)
        assert bool(found.times_s) == samples and found.state == 1


class TestPhases:
    STORED = Stored(4, 9, 13.5, None, (), domain=2)

    @pytest.mark.parametrize(("horizon_s", "oldest_s"), [(None, 9.5), (30.0, -16.5)])
    def test_it_trains_on_the_period_or_the_horizon(self, horizon_s, oldest_s):
        member = OnDevice(period_s=4.0, horizon_s=horizon_s, iterations=7)
        plan = member.plan_downlink(Learned(), SESSION, self.STORED, 14.0)
        assert (plan.phase, plan.oldest_s) == (Phase(7), oldest_s)
        assert plan.state == Learned(2)


class TestStreamStatistics:
    def test_entropy_and_distance_by_hand(self):
        """A share of the entropy of four equal classes; until training starts, against the first frames."""
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import to_input

        node, seen = (
            real_app(Member("adaptation", "frozen"), uses_statistics=True, domain_oracle=True, frame_s=0.1),
            stream(16.0),
        )
        notes = []
        for start in (0.0, 4.0, 12.0):
            node.run_stream(between(seen, start, start + 4), None, start + 4, ((start, 1.0),))
            notes.append(node.stream_statistics().facts)
        with torch.inference_mode():
            looked = [
                features(node._model, to_input(between(seen, start, start + 4).images)) for start in (0.0, 4.0, 12.0)
            ]
        p = torch.softmax(looked[1].outputs.double(), dim=1)
        assert notes[1].entropy == pytest.approx(float(-(p * p.log()).sum(dim=1).mean() / np.log(CLASSES)), rel=1e-5)
        first = looked[0].features.numpy().astype(np.float64)
        far = [looked[which].features.numpy().mean(axis=0, dtype=np.float64) - first.mean(axis=0) for which in (1, 2)]
        unit = np.sqrt(first.var(axis=0).mean())
        assert notes[0].distance == 0.0
        assert [note.distance for note in notes[1:]] == pytest.approx([np.linalg.norm(x) / unit for x in far], rel=1e-4)
        assert [(note.frames, note.domain) for note in notes] == [(8, 0), (8, 0), (8, 1)]

    def test_a_prediction_counts_from_the_time_at_which_it_is_ready(self):
        """A frame takes 0.7 s: that of 3 s is ready at 3.7 s, and the frames in between are skipped."""
        from driftlab.platform.networks.predict import to_input

        node = real_app(Member("adaptation", "frozen"), uses_statistics=True, reports_confidence=True, frame_s=0.7)
        frames, confidence = [], []
        for start, stop in ((0.0, 3.5), (3.5, 4.0)):
            confidence.append(
                node.run_stream(between(stream(), start, stop), None, stop, ((start, 1.0),)).facts.confidence
            )
            frames.append(node.stream_statistics().facts.frames)
        assert frames == [3, 1]
        shown = between(stream(), 0.0, 3.5).images[::2]
        each = [node._model(to_input(shown[[k]])).softmax(dim=1).amax(dim=1).mean().item() for k in range(4)]
        assert confidence == pytest.approx([sum(each[:3]) / 3, each[3]], rel=1e-5)

    def test_an_empty_stream_has_no_statistics(self):
        node = real_app(Member("adaptation", "frozen"), uses_statistics=True)
        assert node.stream_statistics().facts == StreamStatistics(0, None, None, None)


def brighter(frames: Any) -> Any:
    """Return frames of another domain, whose labels are those of the next class."""
    return replace(frames, images=255 - frames.images, labels=(frames.labels + 1) % CLASSES)


def learner(adaptation: Member = Member("adaptation", "adabn"), **params: Any) -> LearnerNode:
    spec = StudentSpec("half", CLASSES, HEIGHT, WIDTH, adaptation, FIXED, 0)
    return LearnerNode(spec, weights(), **params)


class TestLearner:
    @pytest.mark.parametrize("codec", CODECS)
    def test_a_damaged_payload_is_refused(self, codec):
        sampling = Sampling((0.0, 0.5), 1.0, codec=codec)
        payload = pack(stream().images[:2], codec).payload
        whole = learner().receive(payload, sampling, (HEIGHT, WIDTH))
        assert (whole.facts.frames, whole.facts.refused, len(whole.payload)) == (2, "", 2)
        for kind in ("cut", "bits"):
            torn = learner().receive(payload, sampling, (HEIGHT, WIDTH), MessageDamage(kind, 1))
            assert torn.facts.frames == 0
            assert torn.facts.refused.startswith("torn")
            assert torn.payload is None

    def test_samples_without_labels_are_stored_and_trained_on(self):
        node, seen = learner(), stream(4.0)
        stored = node.store(seen, None).facts
        assert (stored.frames, stored.usable_s, stored.phis, stored.unlisted_labels) == (8, 3.5, (), 0)
        done = node.train(DownlinkPlan(None, Phase()))
        assert (done.facts.skipped, done.facts.passes.forward) == ("", (8,))
        assert done.payload is not None

    def test_domains_are_known_to_a_learner_on_the_device_only(self):
        """Labels that came over the link do not have the number of their scene."""
        node, sampling = learner(domain_oracle=True), Sampling((0.0, 0.5), 1.0)
        assert node.store(stream(10.0)[:3], None).facts.domain == 0
        assert node.store(stream(10.0)[17:], None).facts.domain == 1
        received = node.receive(pack(stream().images[:2]).payload, sampling, (HEIGHT, WIDTH)).payload
        assert learner(domain_oracle=True).store(received, None).facts.domain is None

    def test_another_domain_resets_an_episodic_member(self):
        node = learner(Member("adaptation", "adabn", (("episodic", True),)), domain_oracle=True)
        before = node.finish().facts
        node.store(stream(10.0)[:3], None)
        node.train(DownlinkPlan(None, Phase()))
        assert node.finish().facts != before
        node.store(stream(10.0)[17:], None)
        assert node.finish().facts == before


class TestTrials:
    def test_trials_train_on_every_other_sample_and_keep_the_state(self, monkeypatch):
        given, adapt = [], Distill.adapt
        monkeypatch.setattr(
            Distill, "adapt", lambda self, *args: given.append(args[2].times_s.tolist()) or adapt(self, *args)
        )
        seen = stream(4.0)
        node = learner(Member("adaptation", "distill", (("learning_rate", 0.01),)))
        node.store(seen, seen.labels)
        before = node.finish().facts
        tried = node.run_trials(DownlinkPlan(None, None), (Phase(1), Phase(9))).facts
        assert node.finish().facts == before
        predictions = predict(node._model, seen.images[1::2])
        counts = node._task.counts(predictions, seen.labels[1::2], CLASSES)
        assert tried.before == pytest.approx(float(node._task.score(counts.sum(axis=0))))
        assert len(tried.after) == 2 and tried.after[0] != tried.after[1]
        assert [len(work.backward) for work in tried.passes] == [1, 9]
        assert [work.forward[-1] for work in tried.passes] == [4, 4]
        assert tried.scoring_passes.forward == (4,)
        assert given == [[0.0, 1.0, 2.0, 3.0]] * 2

    def test_without_labels_trials_have_no_accuracy(self):
        node = learner()
        node.store(stream(4.0), None)
        tried = node.run_trials(DownlinkPlan(None, None), (Phase(),)).facts
        assert (tried.before, tried.after, tried.scoring_passes.forward) == (None, (None,), ())

    def test_only_samples_that_no_phase_was_trained_on_count_for_scores(self):
        seen = stream(8.0)
        node = learner(Member("adaptation", "distill", (("learning_rate", 0.01),)))
        node.store(seen[:8], seen.labels[:8])
        node.train(DownlinkPlan(None, Phase(2)))
        node.store(seen[8:], seen.labels[8:])
        tried = node.run_trials(DownlinkPlan(None, None), (Phase(1),)).facts
        counts = node._task.counts(predict(node._model, seen.images[9::2]), seen.labels[9::2], CLASSES)
        assert tried.before == pytest.approx(float(node._task.score(counts.sum(axis=0))))
        assert tried.scoring_passes.forward == (4,)

    @pytest.mark.slow
    def test_true_gains_are_those_of_the_next_phase_on_later_frames_of_the_scene(self):
        """The later frames hold a second scene, which does not count."""
        seen, later = stream(4.0), stream(8.0)
        scenes = np.array([0] * 10 + [1] * 6, np.int32)
        node = learner(DISTILL)
        node.store(seen, seen.labels)
        built = state.read(node._model).vector
        found = node.foresee((Phase(1), Phase(8)), replace(later, scenes=scenes)).facts
        assert state.read(node._model).vector.tobytes() == built.tobytes()
        node.train(DownlinkPlan(None, Phase(8)))
        same, every = (node._accuracy(node._model, one.images, one.labels) for one in (later[:10], later))
        assert found.after[1] == pytest.approx(same, abs=1e-3)  # numbers on the wire have 16 bits
        assert abs(same - every) > 2e-3
        assert found.after[0] != found.after[1]


DISTILL = Member("adaptation", "distill", (("fraction", 1.0), ("learning_rate", 0.01)))


class TestRecall:
    """Stored networks: those of phases, which learners share, and the one as built."""

    def store(self, node: LearnerNode, seen: Any, *stores: ExpertStore) -> None:
        """Train on samples, and store the network under them."""
        node.store(seen, seen.labels)
        signature = node.describe_samples().facts.signature
        node.train(DownlinkPlan(None, Phase(30)))
        for experts in stores:
            experts.store(signature, node.store_expert().payload)
        node.drop_samples_before(99.0)

    def recall(self, node: LearnerNode, experts: ExpertStore) -> Any:
        described = node.describe_samples().facts
        known = experts.rank(described.signature)
        return node.recall_expert(described.accuracy, 0.01, tuple(known), *known.values()).facts

    @pytest.mark.slow
    def test_a_stored_network_of_the_same_samples_is_taken_and_sent_without_a_step(self):
        node, experts, seen = learner(DISTILL), ExpertStore(), stream(4.0)
        self.store(node, seen, experts)
        node.store(seen, np.zeros_like(seen.labels))
        node.train(DownlinkPlan(None, Phase(60)))
        node.drop_samples_before(99.0)
        node.store(seen, seen.labels)
        found = self.recall(node, experts)
        assert found.resumed_network == 1
        assert len(found.passes.forward) == 2  # the stored network, and the one as built
        sent = node.train(DownlinkPlan(None, Phase(0)))
        assert (sent.facts.iterations, sent.facts.skipped) == (0, "")
        assert sent.payload
        assert state.read(node._model).vector.tobytes() == experts.jobs[1].vector.tobytes()

    @pytest.mark.slow
    def test_a_camera_that_enters_the_scene_of_another_one_starts_from_its_expert(self):
        """Camera A learned the scene 60 s earlier; the zoo of camera B alone has no network for it."""
        here, there = stream(4.0), brighter(stream(4.0))
        first, second, experts, own = learner(DISTILL), learner(DISTILL), ExpertStore(), ExpertStore()
        self.store(first, here, experts)
        self.store(second, there, experts, own)
        second.store(here, here.labels)
        before = second.describe_samples().facts.accuracy
        assert self.recall(second, own).resumed_network is None
        found = self.recall(second, experts)
        assert found.resumed_network == 1
        assert found.accuracy > before
        assert state.read(second._model).vector.tobytes() == state.read(first._model).vector.tobytes()

    def test_a_learner_without_a_phase_does_not_score_the_network_as_built_twice(self):
        node, seen = learner(DISTILL), stream(4.0)
        node.store(seen, seen.labels)
        assert self.recall(node, ExpertStore()).passes.forward == ()

    def test_at_a_boundary_it_returns_to_the_network_as_built_and_drops_earlier_samples(self):
        node, seen = learner(DISTILL), stream(4.0)
        built = state.read(node._model).vector
        node.store(seen, seen.labels)
        assert node.leave_domain(0.5).facts is None  # nothing was trained
        node.train(DownlinkPlan(None, Phase(2)))
        assert np.abs(state.read(node._model).vector - built).max() > 1e-2
        assert node.leave_domain(2.0).payload
        assert state.read(node._model).vector == pytest.approx(built, abs=1e-3)  # numbers on the wire have 16 bits
        assert node.drop_samples_before(0.0).facts == 4

    def test_without_labels_no_network_is_compared(self):
        node = learner()
        node.store(stream(4.0), None)
        assert node.describe_samples().facts.accuracy is None
