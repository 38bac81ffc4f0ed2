"""What a scheduler believes of applications that learn: gains expected, promises kept, trials that are worth it."""

from __future__ import annotations

from dataclasses import replace

import learners_factory as factory
import numpy as np
import pytest

from driftlab.platform.core.records import Need
from driftlab.platform.scheduling.base import Learning
from driftlab.platform.scheduling.gain_model import (
    CLOSED,
    FADES,
    NOISE,
    REACHED,
    UNSURE_REACHED,
    UNSURE_SPEED,
    Experience,
    Regression,
    positive_part,
    worth_of_trial,
)
from driftlab.platform.scheduling.joint import Joint

WAYS = factory.way(10, None), factory.way(40, None)


def offer(name: str, now: float | None) -> object:
    return factory.offered(name, now, *WAYS)


class TestExperience:
    def test_without_any_a_part_of_the_gap_is_closed(self):
        gain, deviation = Experience().expect(1.0, 0.2)
        assert gain == pytest.approx(CLOSED * (REACHED - 0.2))
        assert deviation > 0

    def test_it_is_the_posterior_of_a_linear_regression_in_which_older_gains_fade(self):
        rng, seen = np.random.default_rng(0), Regression()
        now, gains = rng.uniform(0.1, 0.9, 12), rng.normal(0.1, 0.1, 12)
        for accuracy, gain in zip(now, gains, strict=True):
            seen = seen.see(0.4, float(accuracy), float(gain))
        inputs = (
            np.column_stack([np.full(12, 0.4), -0.4 * now]) * np.sqrt(FADES ** np.arange(12)[::-1])[:, None] / NOISE
        )
        wanted = gains * np.sqrt(FADES ** np.arange(12)[::-1]) / NOISE
        spread = np.outer([REACHED, 1.0], [REACHED, 1.0]) * UNSURE_SPEED**2 + np.diag([UNSURE_REACHED**2, 0.0])
        before = np.linalg.inv(spread)
        precision = inputs.T @ inputs + before
        mean = np.linalg.solve(precision, inputs.T @ wanted + before @ np.array([REACHED, 1.0]))
        here = np.array([0.5, -0.5 * 0.3])
        deviation = np.sqrt(here @ np.linalg.inv(precision) @ here)
        assert seen.expect(0.5, 0.3) == pytest.approx((here @ mean, deviation))

    def test_learning_that_only_costs_accuracy_is_expected_to_go_on_so(self):
        seen = Experience()
        for _ in range(3):
            seen = seen.see(1.0, 0.5, -0.1)
        assert seen.expect(1.0, 0.5)[0] < 0

    def test_what_short_ways_bring_of_the_gain_of_long_ones_is_learned(self):
        """A quarter of the steps brings a quarter of the gain, or nearly three quarters of it."""
        parts = []
        for bend in (0.1, 0.99):
            seen, rng = Experience(), np.random.default_rng(0)
            for length in (0.25, 1.0) * 15:
                gain = 0.3 * (1 - (1 - bend) ** length) / bend
                seen = seen.see(length, 0.4, gain + float(rng.normal(0, 0.03)))
            parts.append(seen.expect(0.25, 0.4)[0] / seen.expect(1.0, 0.4)[0])
        before = Experience().expect(0.25, 0.4)[0] / Experience().expect(1.0, 0.4)[0]
        assert parts[0] < before - 0.1 < before + 0.1 < parts[1]


class TestWorth:
    def test_the_positive_part_of_a_normal_variable_is_its_mean_over_draws(self):
        drawn = np.random.default_rng(0).normal(size=200_000)
        for mean, deviation in ((0.1, 0.2), (-0.1, 0.2), (0.3, 0.05)):
            draws = np.maximum(0, mean + deviation * drawn)
            assert positive_part(mean, deviation) == pytest.approx(float(draws.mean()), abs=2e-3)
        assert (positive_part(-0.1, 0.0), positive_part(0.1, 0.0)) == (0.0, 0.1)

    def test_a_trial_is_worth_most_where_the_decision_is_open(self):
        worth = [worth_of_trial(gain, 0.2, 60.0) for gain in (-0.3, -0.1, 0.0, 0.1, 0.3)]
        assert worth == pytest.approx(worth[::-1])
        assert worth[2] == max(worth) > 1
        assert worth_of_trial(0.0, 0.0, 60.0) == 0


class TestJoint:
    def test_it_asks_for_a_trial_only_where_that_may_change_the_decision(self):
        """A network far from what learning reaches learns at once; one that is there is tried out first."""
        low, there = (Joint().allocate(factory.window(offer("a", now))).grants[0] for now in (0.1, REACHED))
        assert (low.way, low.tries) == (1, ())
        assert there.tries and there.learn > 0  # at once: nobody asks again when a trial begins
        tried = replace(factory.way(40, 0.4)), factory.way(10, None)
        (again,) = Joint().allocate(factory.window(factory.offered("a", REACHED, *tried))).grants
        assert again.tries == ()

    def test_ways_of_unknown_need_are_tried_out_once(self):
        """A network that is cut for samples shows its need when it is tried out; the next time it is remembered."""
        unknown = [replace(way, need=Need(), size=size) for way, size in zip(WAYS, (0.3, 0.8), strict=True)]
        unknown = [replace(way, name=str(i), variant=i) for i, way in enumerate(unknown)]
        first = Joint().allocate(factory.window(factory.offered("a", 0.3, *unknown)))
        assert first.grants[0].tries == (0, 1)
        shown = [replace(way, accuracy=0.6, need=Need({"accelerator": 20.0})) for way in unknown]
        second = Joint().allocate(factory.window(factory.offered("a", 0.3, *shown), state=first.state))
        assert second.grants[0].way is not None
        third = Joint().allocate(factory.window(factory.offered("a", 0.3, *unknown), state=second.state))
        assert third.grants[0].tries == ()
        assert third.grants[0].way is not None

    def test_what_a_phase_brought_decides_the_next_one(self):
        """Each phase leaves the network as it was: after some, none is worth its time."""
        member, state, ways = Joint(), None, []
        for step in range(8):
            at = 100.0 * step
            offered = member.allocate(factory.window(offer("a", 0.5), state=state, start_s=at))
            ways.append(offered.grants[0].way)
            runs = factory.demand("a", Learning("running", left=Need({"accelerator": 10.0}), way="40 s", now=0.5))
            state = member.allocate(factory.window(runs, state=offered.state, start_s=at + 1)).state
        assert ways[0] == 1
        assert state.own.past["a"].networks[None].expect(1.0, 0.5)[0] < 0.02

    def test_a_told_estimate_is_corrected_by_the_next_known_accuracy(self):
        """Asked again while it is still offered, and with an accuracy from before its end, nothing is known yet."""
        member, told = Joint(), factory.offered("a", 0.5, factory.way(40, 0.6))
        before = replace(factory.demand("a", None), observed=0.9, observed_s=5.0)
        runs = factory.demand("a", Learning("running", left=Need({"accelerator": 20.0}), way="40 s", now=0.5, then=0.6))
        then = factory.offered("a", 0.52, factory.way(40, 0.55))
        state, known = None, []
        for at, demand in enumerate((told, told, runs, before, before, then)):
            state = member.allocate(factory.window(demand, state=state, start_s=10.0 * at)).state
            known.append(state.own.past["a"].errors)
        assert known[:5] == [()] * 5
        assert known[5] == (pytest.approx(0.52 - 0.6),)

    def test_what_has_begun_goes_first_and_its_samples_do_not_age(self):
        """While one application learns, another one does not begin to label, whatever it may gain."""
        runs = factory.demand("a", Learning("running", left=Need({"accelerator": 5.0}), way="x", now=0.5, then=0.55))
        waits = factory.demand("b", Learning("running"))
        first = Joint().allocate(factory.window(runs, waits))
        assert [bool(grant.learn) for grant in first.grants] == [True, False]
        ended = Joint().allocate(factory.window(replace(runs, learning=None), waits, state=first.state))
        assert ended.grants[1].learn > 0

    def test_the_longer_a_network_is_unseen_the_sooner_it_is_looked_at(self):
        waits = [
            replace(factory.demand(name, Learning("running")), observed=0.6, observed_by="teacher") for name in "ab"
        ]
        for old in (0, 1):
            demands = [replace(one, observed_s=0.0 if i == old else 90.0) for i, one in enumerate(waits)]
            grants = Joint().allocate(factory.window(*demands, start_s=100.0)).grants
            assert [bool(grant.learn) for grant in grants] == [old == 0, old == 1]

    def test_a_network_that_was_always_right_is_looked_at_again(self):
        right = replace(factory.demand("a", Learning("running")), observed=1.0, observed_by="teacher", observed_s=0.0)
        (grant,) = Joint().allocate(factory.window(right, start_s=100.0)).grants
        assert grant.learn > 0

    def test_what_the_last_phase_promised_says_nothing_of_newer_samples(self):
        """A network that learned to be always right labels again; its new samples may be of another domain."""
        member, runs = Joint(), Learning("running", left=Need({"accelerator": 10.0}), way="40 s", now=0.5)
        first = member.allocate(factory.window(offer("a", 0.5)))
        state = member.allocate(factory.window(factory.demand("a", runs), state=first.state, start_s=1.0)).state
        labels = factory.demand("a", Learning("running", left=Need({"accelerator": 5.0})))
        labels = replace(labels, observed=1.0, observed_by="teacher", observed_s=0.0)
        (grant,) = member.allocate(factory.window(labels, state=state, start_s=100.0)).grants
        assert first.grants[0].way is not None
        assert grant.learn > 0

    @pytest.mark.parametrize(("skipped", "least"), [("lost", 0.25), ("held", 0.0)])
    def test_answers_that_are_lost_without_their_share_keep_it(self, skipped, least):
        """A quarter of the machine answers every frame."""
        given = factory.window(factory.offered("a", 0.5, factory.way(40, 0.6)))
        (grant,) = Joint(skipped=skipped).allocate(given).grants
        assert grant.answer >= least
        assert (grant.answer < 0.25) == (skipped == "held")
