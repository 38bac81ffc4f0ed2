"""Gain model of the joint scheduler: expected gains, corrections, and values of trials."""

from __future__ import annotations

from dataclasses import replace

import learners_factory as factory
import numpy as np
import pytest

from driftlab.datasets.catalogue import find_workload
from driftlab.platform.core.records import TaskCost
from driftlab.platform.scheduling.base import TrainingOffer
from driftlab.platform.scheduling.gain_model import (
    GAIN_NOISE,
    PRIOR_REACHED,
    PRIOR_REACHED_DEVIATION,
    PRIOR_SPEED_DEVIATION,
    RELIABILITY_DECAY,
    GainModel,
    GainRegression,
    positive_part,
    trial_value,
)
from driftlab.platform.scheduling.joint import Joint

CONFIGS = factory.config(10, None), factory.config(40, None)


def offer(name: str, now: float | None) -> object:
    return factory.offered(name, now, *CONFIGS)


class TestGainModel:
    def test_it_is_a_linear_regression_with_decaying_weights(self):
        rng, seen = np.random.default_rng(0), GainRegression()
        now, gains = rng.uniform(0.1, 0.9, 12), rng.normal(0.1, 0.1, 12)
        for accuracy, gain in zip(now, gains, strict=True):
            seen = seen.add(0.4, float(accuracy), float(gain))
        inputs = (
            np.column_stack([np.full(12, 0.4), -0.4 * now])
            * np.sqrt(RELIABILITY_DECAY ** np.arange(12)[::-1])[:, None]
            / GAIN_NOISE
        )
        wanted = gains * np.sqrt(RELIABILITY_DECAY ** np.arange(12)[::-1]) / GAIN_NOISE
        spread = np.outer([PRIOR_REACHED, 1.0], [PRIOR_REACHED, 1.0]) * PRIOR_SPEED_DEVIATION**2 + np.diag(
            [PRIOR_REACHED_DEVIATION**2, 0.0]
        )
        before = np.linalg.inv(spread)
        precision = inputs.T @ inputs + before
        mean = np.linalg.solve(precision, inputs.T @ wanted + before @ np.array([PRIOR_REACHED, 1.0]))
        here = np.array([0.5, -0.5 * 0.3])
        deviation = np.sqrt(here @ np.linalg.inv(precision) @ here)
        assert seen.expect(0.5, 0.3) == pytest.approx((here @ mean, deviation))

    def test_gain_share_of_short_configurations_is_estimated(self):
        """A quarter of the steps yields a quarter of the gain, or nearly three quarters of it."""
        parts = []
        for bend in (0.1, 0.99):
            seen, rng = GainModel(), np.random.default_rng(0)
            for length in (0.25, 1.0) * 15:
                gain = 0.3 * (1 - (1 - bend) ** length) / bend
                seen = seen.add(length, 0.4, gain + float(rng.normal(0, 0.03)))
            parts.append(seen.expect(0.25, 0.4)[0] / seen.expect(1.0, 0.4)[0])
        before = GainModel().expect(0.25, 0.4)[0] / GainModel().expect(1.0, 0.4)[0]
        assert parts[0] < before - 0.1 < before + 0.1 < parts[1]


class TestTrialValue:
    def test_the_positive_part_of_a_normal_variable_is_its_mean_over_draws(self):
        drawn = np.random.default_rng(0).normal(size=200_000)
        for mean, deviation in ((0.1, 0.2), (-0.1, 0.2), (0.3, 0.05)):
            draws = np.maximum(0, mean + deviation * drawn)
            assert positive_part(mean, deviation) == pytest.approx(float(draws.mean()), abs=2e-3)
        assert (positive_part(-0.1, 0.0), positive_part(0.1, 0.0)) == (0.0, 0.1)

    def test_trial_value_is_highest_for_an_open_decision(self):
        worth = [trial_value(gain, 0.2, 60.0) for gain in (-0.3, -0.1, 0.0, 0.1, 0.3)]
        assert worth == pytest.approx(worth[::-1])
        assert worth[2] == max(worth) > 1
        assert trial_value(0.0, 0.0, 60.0) == 0


class TestJoint:
    def test_trial_is_requested_only_if_it_may_change_the_decision(self):
        """A network far below the reachable accuracy trains at once; one at that accuracy is tried first."""
        low, there = (Joint().allocate(factory.window(offer("a", now))).grants[0] for now in (0.1, PRIOR_REACHED))
        assert (low.config, low.trials) == (1, ())
        assert there.trials and there.training_share > 0  # at once: the scheduler is not called when a trial starts
        tried = replace(factory.config(40, 0.4)), factory.config(10, None)
        (again,) = Joint().allocate(factory.window(factory.offered("a", PRIOR_REACHED, *tried))).grants
        assert again.trials == ()

    def test_configurations_of_unknown_cost_are_tried_once(self):
        """The cost of a network that is cut for samples is measured in its trial, and stored."""
        unknown = [replace(way, cost=TaskCost(), size=size) for way, size in zip(CONFIGS, (0.3, 0.8), strict=True)]
        unknown = [replace(way, name=str(i), variant=i) for i, way in enumerate(unknown)]
        first = Joint().allocate(factory.window(factory.offered("a", 0.3, *unknown)))
        assert first.grants[0].trials == (0, 1)
        shown = [replace(way, accuracy=0.6, cost=TaskCost({"accelerator": 20.0})) for way in unknown]
        second = Joint().allocate(factory.window(factory.offered("a", 0.3, *shown), state=first.state))
        assert second.grants[0].config is not None
        third = Joint().allocate(factory.window(factory.offered("a", 0.3, *unknown), state=second.state))
        assert third.grants[0].trials == ()
        assert third.grants[0].config is not None

    def test_gain_of_a_phase_decides_the_next_one(self):
        """No phase changes the accuracy: after some phases, none is worth its time."""
        member, state, configs = Joint(), None, []
        for step in range(8):
            at = 100.0 * step
            offered = member.allocate(factory.window(offer("a", 0.5), state=state, start_s=at))
            configs.append(offered.grants[0].config)
            runs = factory.demand(
                "a", TrainingOffer("running", left=TaskCost({"accelerator": 10.0}), config="40 s", accuracy_before=0.5)
            )
            state = member.allocate(factory.window(runs, state=offered.state, start_s=at + 1)).state
        assert configs[0] == 1
        assert state.own.histories["a"].networks[None].expect(1.0, 0.5)[0] < 0.02

    def test_offered_estimate_is_corrected_by_the_next_observation(self):
        """A repeated offer, and an accuracy from before the end of the phase, are no observations."""
        member, told = Joint(), factory.offered("a", 0.5, factory.config(40, 0.6))
        before = replace(factory.demand("a", None), observed=0.9, observed_s=5.0)
        runs = factory.demand(
            "a",
            TrainingOffer(
                "running", left=TaskCost({"accelerator": 20.0}), config="40 s", accuracy_before=0.5, accuracy_after=0.6
            ),
        )
        then = factory.offered("a", 0.52, factory.config(40, 0.55))
        state, known = None, []
        for at, demand in enumerate((told, told, runs, before, before, then)):
            state = member.allocate(factory.window(demand, state=state, start_s=10.0 * at)).state
            known.append(state.own.histories["a"].errors)
        assert known[:5] == [()] * 5
        assert known[5] == (pytest.approx(0.52 - 0.6),)

    def test_started_training_has_priority_over_labelling(self):
        """During a training no other application starts to label, however large its gain."""
        runs = factory.demand(
            "a",
            TrainingOffer(
                "running", left=TaskCost({"accelerator": 5.0}), config="x", accuracy_before=0.5, accuracy_after=0.55
            ),
        )
        waits = factory.demand("b", TrainingOffer("running"))
        first = Joint().allocate(factory.window(runs, waits))
        assert [bool(grant.training_share) for grant in first.grants] == [True, False]
        ended = Joint().allocate(factory.window(replace(runs, learning=None), waits, state=first.state))
        assert ended.grants[1].training_share > 0

    def test_priority_grows_with_the_time_since_the_last_observation(self):
        waits = [
            replace(factory.demand(name, TrainingOffer("running")), observed=0.6, observed_by="teacher")
            for name in "ab"
        ]
        for old in (0, 1):
            demands = [replace(one, observed_s=0.0 if i == old else 90.0) for i, one in enumerate(waits)]
            grants = Joint().allocate(factory.window(*demands, start_s=100.0)).grants
            assert [bool(grant.training_share) for grant in grants] == [old == 0, old == 1]

    def test_expectation_of_the_last_phase_is_not_used_for_newer_samples(self):
        """A network of accuracy 1 labels again, because new samples may be of another domain."""
        member, runs = (
            Joint(),
            TrainingOffer("running", left=TaskCost({"accelerator": 10.0}), config="40 s", accuracy_before=0.5),
        )
        first = member.allocate(factory.window(offer("a", 0.5)))
        state = member.allocate(factory.window(factory.demand("a", runs), state=first.state, start_s=1.0)).state
        labels = factory.demand("a", TrainingOffer("running", left=TaskCost({"accelerator": 5.0})))
        labels = replace(labels, observed=1.0, observed_by="teacher", observed_s=0.0)
        (grant,) = member.allocate(factory.window(labels, state=state, start_s=100.0)).grants
        assert first.grants[0].config is not None
        assert grant.training_share > 0

    @pytest.mark.parametrize(("skipped", "least"), [("wrong", 0.25), ("stale", 0.0)])
    def test_inference_keeps_the_share_without_which_frames_are_lost(self, skipped, least):
        """A share of 0.25 predicts every frame."""
        given = factory.window(factory.offered("a", 0.5, factory.config(40, 0.6)))
        (grant,) = Joint(skipped_frames=skipped).allocate(given).grants
        assert grant.inference_share >= least
        assert (grant.inference_share < 0.25) == (skipped == "stale")

    def test_skipped_frames_count_as_the_stream_of_each_application_determines(self):
        """Only pictures need a share of 0.25 during a training: the last prediction holds for a video."""
        pictures = factory.offered("a", 0.5, factory.config(40, 0.6))
        found = [
            Joint().allocate(factory.window(replace(pictures, video=video))).grants[0].inference_share
            for video in (False, True)
        ]
        assert found[0] >= 0.25 > found[1]
        assert not find_workload("domains:set:digits").video
        assert find_workload("any-street").video
