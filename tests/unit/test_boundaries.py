"""Boundaries between domains: their detection in pixels, and the return to the network as built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import learners_factory as learners
import learning_factory as factory
import numpy as np
import pytest
from loop_factory import FixedMember, rows, run, uploads

from driftlab.platform.core.records import Passes, SampleDescription, Trained
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling
from driftlab.platform.scheduling.candidates import read_apps
from driftlab.platform.scheduling.gain_model import AppHistory, ExpectedGain, estimate, with_expected_accuracy
from driftlab.platform.scheduling.joint import PRIOR_DOMAIN_S, Joint, expected_s
from driftlab.platform.sim.nodes.boundaries import BATCHES, BoundaryDetector, image_statistics
from driftlab.platform.sim.rounds import OTHER_DOMAIN, newest_of

WEIGHTS = Trained(0, 0, 1000, 0, 0, None, None, None, "", 0.0)


def images(count: int, seed: int, level: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    objects = rng.uniform(40, 200, (count, 1, 1, 3)) + rng.normal(0, 20, (count, 16, 16, 3))
    return np.clip(objects + level, 0, 255).astype(np.uint8)


class TestDetection:
    def test_no_boundary_is_detected_within_a_domain(self):
        for seed in range(4):
            detector = BoundaryDetector()
            assert not any(detector.add(one) for one in image_statistics(images(400, seed)))

    def test_a_change_is_detected_with_the_first_whole_batch_and_once(self):
        """Noise changes the edges and the curvature, whatever the images show."""
        for seed in range(4):
            detector, noise = BoundaryDetector(), np.random.default_rng(seed).normal(0, 30, (80, 16, 16, 3))
            after = np.clip(images(80, seed + 10) + noise, 0, 255).astype(np.uint8)
            found = [detector.add(one) for one in image_statistics(np.concatenate([images(80, seed), after]))]
            assert np.flatnonzero(found).tolist() == [80 + BATCHES[0] - 1]

    def test_statistics_are_those_of_the_pixels(self):
        grey = np.tile(np.arange(16, dtype=np.uint8) * 10, (1, 16, 1))[..., None].repeat(3, axis=3)
        (found,) = image_statistics(grey)
        assert found[:3] == pytest.approx([75 / 255] * 3)
        assert found[6:] == pytest.approx([0.0, 10 / 255, 0.0, 0.0], abs=1e-12)


@dataclass
class Detecting(Scheduling):
    """Give a half of the processor to training, and detect boundaries."""

    detects_boundaries = True
    first_samples_s: float | None = None
    labels_per_round: int | None = None
    recall_drop: float | None = None

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked = [*getattr(self, "asked", []), window]
        return Allocation((Grant(0.5, training_share=0.5),) * len(window.demands))


class TestReturn:
    def ran(
        self, boundary_s: float, *sent_s: float, scheduler: Any = None, **script: Any
    ) -> tuple[Any, Any, Detecting]:
        session = factory.on_device(
            detect_boundary=lambda node, times_s: session.now_s == boundary_s,
            leave_domain=lambda node, began_s: WEIGHTS,
            **script,
        )
        scheduler = scheduler or Detecting()
        given = {"adaptation": factory.FROM_TEACHER, "scheduling": FixedMember(scheduler), **factory.TEACHER}
        return *run(factory.OnDevice(uploads(*(sent_s or (5.0,)))), session=session, **given), scheduler

    def test_the_network_as_built_is_sent_at_the_boundary(self):
        session, _, scheduler = self.ran(12.0)
        (left,) = session.of("leave_domain")
        assert (left.now_s, left.args) == (12.0, (session.of("detect_boundary")[5].args[0][0],))
        assert session.of("apply")[-1].args[0] is left
        assert scheduler.asked[-1].demands[0].changed_s == left.args[0]

    def test_a_round_on_earlier_samples_is_abandoned_and_charged_for_its_part_only(self):
        session, loop, _ = self.ran(2.0, 1.99)
        assert not session.of("train")
        assert [row["reason"] for row in rows(loop, "updates")] == [OTHER_DOMAIN, None]
        (full,) = rows(self.ran(28.0, 1.99)[1], "runs")
        (part,) = rows(loop, "runs")
        assert 0 < part["labelling_j"] < full["labelling_j"]

    def test_an_accuracy_in_the_domain_before_is_forgotten_though_its_scoring_ends_later(self):
        """Otherwise the frames of a network would be dropped that is accurate in its new domain."""
        scheduler = Detecting(recall_drop=0.1)
        passes = Passes(forward=(10_000,))
        session, _, _ = self.ran(
            12.0, scheduler=scheduler, describe_samples=lambda node: SampleDescription(0.08, (1.0,), passes)
        )
        (began,) = [note.now_s for note in session.of("describe_samples")]
        assert began < 12.0
        assert {window.demands[0].observed for window in scheduler.asked if window.start_s >= 12.0} == {None}
        calm = Detecting(recall_drop=0.1)
        self.ran(999.0, scheduler=calm, describe_samples=lambda node: SampleDescription(0.08, (1.0,), passes))
        assert calm.asked[-1].demands[0].observed == 0.08


class TestFirstSamples:
    """Samples soon after the start and after a boundary, of which the newest are labelled."""

    def test_they_are_taken_after_the_given_time(self):
        """The boundary at 12 s began with the oldest frame of that test."""
        session, _, _ = TestReturn().ran(12.0, 29.0, scheduler=Detecting(first_samples_s=6.0))
        began_s = session.of("leave_domain")[0].args[0]
        _, *early = session.of("sample")  # the first one is planned by the streaming member
        assert [note.now_s for note in early] == pytest.approx([6.0, began_s + 6.0])
        spans = [(min(note.args[0].times_s), max(note.args[0].times_s)) for note in early]
        assert all(start_s <= first_s <= last_s < note.now_s for note, (first_s, last_s), start_s in
                   zip(early, spans, (0.0, began_s), strict=True))  # fmt: skip
        assert len(TestReturn().ran(12.0, 29.0)[0].of("sample")) == 1

    def test_a_round_stores_and_pays_for_the_newest_labels_only(self):
        stored = lambda node, frames, labels, *more: factory.stored(frames.facts)  # noqa: E731
        spent = []
        for limit in (None, 4):
            session, loop, _ = TestReturn().ran(28.0, scheduler=Detecting(labels_per_round=limit), store=stored)
            spent.append((session.of("store")[0].args[4:], rows(loop, "runs")[0]["labelling_j"]))
        assert [newest for newest, _ in spent] == [(), (4,)]
        assert spent[1][1] == pytest.approx(0.4 * spent[0][1])  # of ten samples

    @pytest.mark.parametrize(
        ("limit", "stored"), [(None, [3, 5, 2]), (4, [0, 2, 2]), (2, [0, 0, 2]), (7, [0, 5, 2]), (99, [3, 5, 2])]
    )
    def test_the_newest_of_several_uploads(self, limit, stored):
        assert newest_of([3, 5, 2], limit) == stored


class TestJoint:
    def test_after_a_phase_its_expected_accuracy_counts_until_one_is_observed(self):
        app = learners.app(0, 0.1, (10, 0.5))
        expected = ExpectedGain(learners.config(10, None), 1.0, 0.1, 0.45)
        assert with_expected_accuracy(app, AppHistory(expected=expected, begun=True, ended_s=30.0)).now == 0.45
        assert with_expected_accuracy(app, AppHistory(expected=expected, begun=True)).now == 0.1  # it still runs
        assert with_expected_accuracy(app, AppHistory(ended_s=30.0)).now == 0.1

    def test_gains_count_until_the_next_expected_boundary(self):
        window = replace(learners.window(learners.demand("a", None)), start_s=100.0, left_s=50.0)
        mean_s = (PRIOR_DOMAIN_S + 100) / 3
        expected = np.minimum(np.random.default_rng(0).exponential(mean_s, 10**6), 50).mean()
        assert expected_s(window, {"a": AppHistory(boundaries=2)}) == pytest.approx(expected, rel=1e-2)

    def test_a_boundary_ends_the_expectation_of_the_newest_phase(self):
        offer = replace(learners.offered("a", 0.2, learners.config(5, None)), changed_s=None)
        member = Joint(boundaries=True)
        state = member.allocate(learners.window(offer, left_s=100.0)).state
        assert state.own.histories["a"].expected is not None
        later = replace(learners.demand("a", None), changed_s=30.0)
        state = member.allocate(learners.window(later, state=state, start_s=30.0, left_s=70.0)).state
        assert state.own.histories["a"].expected is None
        assert state.own.histories["a"].boundaries == 1

    def test_labelling_is_declined_where_the_rest_of_the_session_cannot_repay_it(self):
        """A second of labelling costs frames in either case."""
        found = []
        for left_s in (1000.0, 5.0):
            waits = replace(learners.running("a", 1.0, 0.3, None), observed=0.3, fps=30.0)
            (grant,) = Joint(boundaries=True).allocate(learners.window(waits, left_s=left_s)).grants
            found.append(bool(grant.training_share))
        assert found == [True, False]

    def test_an_unobserved_accuracy_drifts_only_without_detection(self):
        """The value of labelling grows with the time unobserved, unless boundaries are detected."""

        def reached(start_s: float, drifts: bool) -> float:
            waits = replace(learners.running("a", 3.0, 0.5, None), observed=0.5, observed_s=0.0)
            window = learners.window(waits, start_s=start_s)
            return (
                estimate(window, read_apps(window)[0], AppHistory(), drifts=drifts)[0].app.candidates[0].accuracy_after
            )

        assert reached(300.0, True) > reached(0.0, True) + 0.05
        assert reached(300.0, False) == reached(0.0, False) == reached(0.0, True)

    def test_labelling_that_costs_frames_of_others_needs_a_gain_that_is_likely(self):
        """Two applications fill the processor: two seconds of labelling cost frames of both."""
        waits = replace(learners.running("a", 2.0, 0.5, None), observed=0.5, observed_s=0.0, fps=20.0)
        other = replace(learners.demand("b", None), observed=0.8, observed_s=0.0, fps=20.0)
        found = [
            bool(Joint(boundaries=one).allocate(learners.window(waits, other, left_s=60.0)).grants[0].training_share)
            for one in (False, True)
        ]
        assert found == [True, False]
