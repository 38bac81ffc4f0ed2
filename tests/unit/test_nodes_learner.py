"""The learner: the contents of its buffer, its training time, and its updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from driftlab.datasets.frames import IGNORE, Frames
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.metrics import confusion, miou
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import load, predict, state_of
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.setting import StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan, Wire
from driftlab.platform.streaming.wire import delta

HEIGHT, WIDTH, CLASSES = 16, 24, 8


def learner(seed: int = 0, **params: Any) -> LearnerNode:
    distill = Member("adaptation", "distill", tuple(params.items()))
    spec = StudentSpec("half", CLASSES, HEIGHT, WIDTH, distill, Member("scaling", "fixed"), seed)
    return LearnerNode(spec, state_of(build("half", CLASSES, seed=0)))


def frames(*times_s: float) -> Frames:
    rng = np.random.default_rng([round(1000 * time_s) for time_s in times_s])
    n = len(times_s)
    return Frames(
        times_s=np.array(times_s),
        images=rng.integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8),
        scenes=np.zeros(n, np.int32),
        labels=rng.integers(0, CLASSES, (n, HEIGHT, WIDTH), dtype=np.uint8),
    )


def store(node: LearnerNode, *times_s: float) -> Any:
    seen = frames(*times_s)
    return node.store(seen, seen.labels).facts


class TestStore:
    def test_its_reply_has_the_contents_of_the_buffer(self):
        node = learner()
        first, second = store(node, 0.0, 1.0), store(node, 2.0, 3.0, 4.5)
        assert (first.frames, first.buffered, first.newest_s) == (2, 2, 1.0)
        assert (second.frames, second.buffered, second.newest_s) == (3, 5, 4.5)

    def test_its_reply_has_the_label_change_of_each_sample(self):
        node = learner()
        found = [*store(node, 0.0, 1.0).phis, *store(node, 2.0, 3.0, 4.5).phis]
        labels = np.concatenate([frames(0.0, 1.0).labels, frames(2.0, 3.0, 4.5).labels])
        wanted = [1 - float(miou(confusion(labels[i + 1], labels[i], CLASSES))) for i in range(4)]
        assert found == pytest.approx(wanted)

    def test_a_change_is_computed_from_the_previous_sample_beyond_the_horizon(self):
        node = learner()
        store(node, 0.0, 1.0)
        node.train(DownlinkPlan(None, Phase(1), oldest_s=99.0))
        wanted = 1 - float(miou(confusion(frames(100.0).labels[0], frames(0.0, 1.0).labels[1], CLASSES)))
        assert store(node, 100.0).phis == pytest.approx((wanted,))

    def test_unknown_labels_are_no_change(self):
        node, seen = learner(), frames(0.0, 1.0, 2.0)
        labels = np.stack([seen.labels[0]] * 3)
        labels[0, :8], labels[1] = IGNORE, IGNORE
        assert node.store(seen, labels).facts.phis == (0.0, 0.0)

    def test_samples_may_be_filed_under_the_time_of_their_receipt(self):
        node, seen = learner(), frames(0.0, 1.0)
        facts = node.store(seen, seen.labels, 7.5).facts
        assert (facts.newest_s, facts.usable_s) == (7.5, 7.5)
        assert node.train(DownlinkPlan(None, Phase(1), oldest_s=7.0)).facts.frames == 2

    def test_its_reply_has_the_time_of_the_newest_sample_with_a_valid_label(self):
        node, seen = learner(), frames(0.0, 1.0, 2.0)
        labels = seen.labels.copy()
        labels[1], labels[2] = CLASSES, IGNORE  # outside the class list, and unknown
        labels[1, 3, 3] = 1
        assert node.store(seen, labels).facts.usable_s == 1.0
        assert node.store(frames(3.0), np.full_like(labels[:1], CLASSES + 1)).facts.usable_s == 1.0
        assert store(node, 4.0).usable_s == 4.0

    def test_it_counts_labels_that_name_no_class_among_those_that_came(self):
        node, seen = learner(), frames(0.0, 1.0)
        labels = seen.labels.copy()
        labels[1, 3, :3] = CLASSES, CLASSES + 9, IGNORE
        assert node.store(seen, labels).facts.unlisted_labels == 3 + np.count_nonzero(seen.labels >= CLASSES)
        assert node.store(seen, np.zeros_like(labels)).facts.unlisted_labels == 0


class TestTrain:
    def test_only_changed_weights_are_sent_unless_all_are_requested(self):
        node = learner(fraction=0.05)
        store(node, 0.0, 1.0)
        size = vector.layout_of(build("half", CLASSES, seed=0)).size
        sparse, dense = (node.train(DownlinkPlan(None, Phase(3), dense=dense)).facts for dense in (False, True))
        assert sparse.values == pytest.approx(0.05 * size, rel=0.01)
        assert dense.values == size
        assert dense.bytes > 2 * size > 5 * sparse.bytes

    def test_whole_weights_are_never_written_in_few_bits(self):
        node = learner()
        store(node, 0.0, 1.0)
        size = vector.layout_of(build("half", CLASSES, seed=0)).size
        few = DownlinkPlan(None, Phase(1), wire=Wire("int4", "rice"))
        assert node.train(few).facts.bytes < size
        assert node.train(replace(few, dense=True)).facts.bytes > 2 * size
        node.switch(0)
        assert node.train(few).facts.bytes > 2 * size

    def test_an_empty_horizon_makes_no_update_and_no_version(self):
        node = learner()
        store(node, 0.0, 1.0)
        nothing = node.train(DownlinkPlan(None, Phase(1), oldest_s=99.0))
        assert (nothing.payload, nothing.facts.bytes, nothing.facts.values) == (None, 0, 0)
        assert nothing.facts.skipped
        assert nothing.facts.loss_first is None
        store(node, 100.0)
        update = node.train(DownlinkPlan(None, Phase(1))).payload
        model = build("half", CLASSES, seed=0)
        assert delta.apply(update, vector.read(model), vector.layout_of(model), base=0).version == 1

    def test_training_ends_as_soon_as_the_student_fits_the_batch(self):
        node = learner(fraction=1.0)
        seen = frames(0.0)
        known = predict(build("half", CLASSES, seed=0), seen.images)
        node.store(seen, known)
        facts = node.train(DownlinkPlan(None, Phase(50, stop_score=0.9))).facts
        assert (facts.iterations, facts.score) == (0, 1.0)
        assert facts.skipped

    @pytest.mark.slow
    def test_training_lowers_the_loss(self):
        node = learner(fraction=1.0, learning_rate=1e-2)
        seen = frames(0.0)
        labels = np.zeros_like(seen.labels)
        labels[:, :, WIDTH // 2 :] = 1
        node.store(seen, labels)
        facts = node.train(DownlinkPlan(None, Phase(60))).facts
        assert facts.loss_last < facts.loss_first / 2

    def test_values_too_large_for_half_precision_are_clamped_and_counted_at_both_ends(self):
        node = learner(fraction=1.0, learning_rate=1e-30)
        weights = vector.read(node._model)
        weights[:3] = 1e6
        vector.write(node._model, weights)
        store(node, 0.0)
        reply = node.train(DownlinkPlan(None, Phase(1), dense=True))
        assert reply.facts.clamped == 3
        model = build("half", CLASSES, seed=0)
        taken = delta.apply(reply.payload, vector.read(model), vector.layout_of(model), base=0).vector
        assert taken[:3].tolist() == [65504.0] * 3
        assert np.array_equal(taken, vector.read(node._model))


class TestResend:
    def after(self, *messages: bytes) -> Any:
        """Apply messages, of which each must fit, to a device that holds something else than the server."""
        model = build("half", CLASSES, seed=3)
        weights, layout, version = vector.read(model), vector.layout_of(model), 0
        for message in messages:
            applied = delta.apply(message, weights, layout, base=version)
            weights, version = applied.vector, applied.version
        return weights

    def test_it_synchronises_a_device_in_any_state(self):
        node = learner()
        store(node, 0.0, 1.0)
        node.train(DownlinkPlan(None, Phase(2)))  # lost on the way
        whole, update = node.resend(), node.train(DownlinkPlan(None, Phase(2)))
        assert np.array_equal(self.after(whole.payload, update.payload), vector.read(node._model))


class TestCheck:
    """The accuracy before and after a phase, on later frames of the newest sample's scene."""

    def node(self) -> LearnerNode:
        node = learner(iterations=2, batch=2, learning_rate=0.05)
        store(node, 0.0, 1.0, 2.0)
        return node

    def test_both_networks_are_scored_and_the_learner_stays_as_it_was(self):
        node, plain, later = self.node(), self.node(), frames(2.0, 3.0, 4.0, 5.0)
        later.scenes[3] = 1
        first = state_of(node._model)
        node.train(DownlinkPlan(None, Phase(2)), True)
        check = node.check(later).facts
        plain.train(DownlinkPlan(None, Phase(2)))
        assert node.finish().facts == plain.finish().facts
        for weights, found in ((first, check.true[0]), (state_of(node._model), check.true[1])):
            model = build("half", CLASSES, seed=0)
            load(model, weights)
            predicted = predict(model.eval(), later.images[1:3])
            assert found == pytest.approx(float(miou(confusion(predicted, later.labels[1:3], CLASSES))))
        assert check.true[0] != check.true[1] and check.confident == (None, None)

    def test_without_a_later_frame_of_the_scene_nothing_is_true(self):
        node, later = self.node(), frames(2.0, 3.0)
        node.train(DownlinkPlan(None, Phase(2)), True)
        later.scenes[1] = 1
        assert node.check(later).facts.true == (None, None)
        assert node.check(replace(frames(2.0, 3.0), labels=None)).facts.true == (None, None)
