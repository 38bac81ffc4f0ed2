"""Division between inference and training: evaluation, Ekya, AFS, Synergy, Muri, RECL."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import learners_factory as factory
import numpy as np
import pytest

from driftlab.platform.core.records import TaskCost
from driftlab.platform.scheduling.afs import divide_slots
from driftlab.platform.scheduling.base import Demand
from driftlab.platform.scheduling.candidates import Candidate
from driftlab.platform.scheduling.ekya import Ekya, pick_configs, predict_accuracy, profile, run_thief, share_fairly
from driftlab.platform.scheduling.evaluation import (
    AccuracyFactor,
    Trainings,
    accuracy_factor,
    evaluate,
    plan_intervals,
    trainings_of,
)
from driftlab.platform.scheduling.muri import group_jobs, interleaving_efficiency, match_pairs, period
from driftlab.platform.scheduling.plans import SchedulerState
from driftlab.platform.scheduling.recl import RecentGain, Recl, observe
from driftlab.platform.scheduling.synergy import tune_placement
from driftlab.platform.scheduling.zoo import Zoo, start_from


def played(trainings: Trainings, learn: list[float], inference: list[float], window_s: float, tick_s: float) -> float:
    """Return the mean accuracy of a plan, integrated in short steps."""
    accuracy, left, learn, inference = (
        list(trainings.accuracy_before),
        list(trainings.seconds),
        list(learn),
        list(inference),
    )
    scale = AccuracyFactor(np.array(trainings.full_share))
    total = 0.0
    for _ in range(round(window_s / tick_s)):
        total += tick_s * float(np.dot(accuracy, scale(np.array(inference))))
        left = [work - tick_s * share for work, share in zip(left, learn, strict=True)]
        for i in [i for i, work in enumerate(left) if learn[i] and work <= 1e-9]:
            accuracy[i], freed, learn[i] = trainings.accuracy_after[i], learn[i], 0.0
            remain = [
                *(j for j, share in enumerate(learn) if share),
                *(len(learn) + j for j in range(len(inference))),
            ]
            for job in remain:
                if job < len(learn):
                    learn[job] += freed / len(remain)
                else:
                    inference[job - len(learn)] += freed / len(remain)
    return total / window_s / len(learn)


class TestEvaluation:
    QUARTERS = (0.25, 0.25)

    @pytest.mark.slow
    def test_it_is_the_limit_of_short_steps(self):
        for seed in range(5):
            rng, apps = np.random.default_rng(seed), factory.apps(seed, 3)
            trainings, shares = trainings_of(apps, [0, 1, 2]), rng.dirichlet(np.ones(6)).tolist()
            found = evaluate(trainings, shares[:3], shares[3:], 300)
            assert played(trainings, shares[:3], shares[3:], 300, 0.02) == pytest.approx(found, abs=2e-4)

    def test_inference_without_a_share_receives_the_one_of_a_training(self):
        """1 s of work at the full share, then 9 s of inference at the full share, after 0.9 instead of 0.5."""
        alone = factory.app(0, 0.5, (1, 0.9))
        assert evaluate(trainings_of([alone], [0]), [1.0], [0.0], 10) == pytest.approx(0.9 * 0.9)
        assert pick_configs([factory.app(0, 0.5, (5, 0.9), (1, 0.6))], [1.0], [0.0], 10) == (1,)
        assert pick_configs([factory.app(0, 0.5, (1, 0.5))], [0.5], [0.5], 10) == (0,)  # as accurate as before

    def test_freed_share_may_be_limited_to_inference(self):
        trainings = trainings_of(factory.CAMERAS, [0, 1])
        _, second, *_ = plan_intervals(trainings, self.QUARTERS, self.QUARTERS, 200, freed="inference")
        assert (second.training, second.inference) == ([0, 0.25], [0.375, 0.375])

    def test_accuracy_factor_matches_the_table(self):
        shares = np.array([0.3, 0.25, 0.125, 0.05, 0.03125, 0.02, 0])
        by_hand = pytest.approx([1, 1, 0.95, 0.8125, 0.7, 0, 0])
        assert [accuracy_factor(0.25, share) for share in shares.tolist()] == by_hand
        assert AccuracyFactor(np.array(0.25))(shares).tolist() == by_hand


class TestLearningCurves:
    @pytest.mark.parametrize(
        ("measured", "expected"),
        [(0.5, (0.499, 0.566, 0.600)), (0.7, (0.707, 0.807, 0.844)), (0.9, (0.889, 0.931, 0.943))],
    )
    def test_the_published_cases(self, measured, expected):
        assert predict_accuracy(0.4, [(5, measured)], (5, 15, 30)) == pytest.approx(expected, abs=1e-3)

    @pytest.mark.parametrize("measured", [[(5, 0.3)], [], [(5, float("nan"))]])
    def test_a_fit_that_fails_predicts_the_start(self, measured):
        assert predict_accuracy(0.6, measured, (5, 30)).tolist() == [0.6, 0.6]

    def test_only_a_short_trial_is_extended(self):
        short = Candidate(0, 30.0, 0.4, 0.7, trial_fraction=1 / 6)
        whole = Candidate(1, 30.0, 0.4, 0.7)
        app = factory.app(0, 0.4)
        found = profile(type(app)(0, "a", 0.4, candidates=(short, whole))).candidates
        assert [one.accuracy_after for one in found] == pytest.approx([0.844, 0.7], abs=1e-3)

    def test_the_epochs_of_a_candidate_are_in_proportion_to_its_time(self):
        """Each has an accuracy of 0.7 after 5 epochs; the longest runs 30 epochs, one of half its time 15."""
        longest, half = (
            Candidate(0, 30.0, 0.4, 0.7, trial_fraction=1 / 6),
            Candidate(1, 15.0, 0.4, 0.7, trial_fraction=1 / 3),
        )
        app = replace(factory.app(0, 0.4), candidates=(longest, half))
        assert [one.accuracy_after for one in profile(app).candidates] == pytest.approx([0.844, 0.807], abs=1e-3)


class TestThief:
    def test_the_published_case(self):
        thief = run_thief(factory.CAMERAS, 200)
        assert thief.chosen == (1, 0)
        assert [*thief.training, *thief.inference] == pytest.approx([0.7, 0, 0.15, 0.15])
        assert thief.score == pytest.approx(0.677143, abs=5e-7)
        first = next(plan_intervals(trainings_of(factory.CAMERAS, thief.chosen), thief.training, thief.inference, 200))
        assert first.stop_s == pytest.approx(85.714, abs=5e-4)
        plan = trainings_of(factory.CAMERAS, (0, 0))
        assert thief.score > evaluate(plan, (0.45, 0.15), (0.15, 0.25), 200)  # of the published simulator

    def test_the_published_case_shared_fairly(self):
        """The published score is the mean of 201 whole seconds; the integral is slightly lower."""
        thief = share_fairly(factory.CAMERAS, 200)
        assert thief.chosen == (0, 1)
        assert thief.score == pytest.approx(0.66125)
        found = list(plan_intervals(trainings_of(factory.CAMERAS, thief.chosen), thief.training, thief.inference, 200))
        sampled = [
            next(np.mean(interval.accuracy) for interval in found if second < interval.stop_s or interval is found[-1])
            for second in range(201)
        ]
        assert np.mean(sampled) == pytest.approx(0.661443, abs=5e-7)

    @pytest.mark.parametrize(
        ("freed", "learn", "inference"), [("all", 1 / 3, (7 / 30, 13 / 30)), ("inference", 0.2, (0.3, 0.5))]
    )
    def test_share_of_a_finished_training_is_split_equally(self, freed, learn, inference):
        state = SchedulerState((), (("a", 0.4, 0.1), ("b", 0.2, 0.3)))
        ended = factory.window(factory.demand("a", None), factory.running("b", 40), state=state, reason="end")
        a, b = Ekya(freed=freed).allocate(ended).grants
        assert (a.training_share, b.training_share) == (None, pytest.approx(learn))
        assert (a.inference_share, b.inference_share) == pytest.approx(inference)

    def test_trials_keep_a_share_when_another_training_ends(self):
        trying, declined = factory.running("a", 5, then=None), factory.offered("b", 0.9, factory.config(20, 0.8))
        first = Ekya().allocate(factory.window(trying, declined, reason="offer"))
        assert first.grants[1].config is None
        ended = factory.window(trying, factory.demand("b", None), state=first.state, reason="end")
        assert Ekya().allocate(ended).grants[0].training_share > 0


class TestAfs:
    WORK = (100, 300, 200)
    SPEED = np.array([(1, 1.9, 2.7, 3.4), (1, 1.5, 1.8, 2), (1, 2, 3, 4)])

    @pytest.mark.parametrize(("slots", "held"), [(6, [3, 1, 2]), (8, [3, 2, 3]), (2, [1, 0, 1])])
    def test_the_published_cases(self, slots, held):
        assert divide_slots(self.WORK, self.SPEED, slots) == held

    def test_no_job_exceeds_its_usable_slots(self):
        assert divide_slots(self.WORK, self.SPEED, 20) == [4, 4, 4]


class TestSynergy:
    def test_light_jobs_leave_resources_to_heavy_ones(self):
        asked = np.array([[0.25, 0.4], [0.25, 0.4], [0.25, 0.1], [0.25, 0.1]])
        servers, held = tune_placement(asked, np.ones((1, 2)))
        assert servers == [0, 0, 0, 0]
        assert held == pytest.approx(asked)
        assert held.sum(axis=0) == pytest.approx([1, 1])

    def test_no_job_is_below_its_proportional_share_or_demand(self):
        for seed in range(300):
            rng = np.random.default_rng(seed)
            jobs = int(rng.integers(1, 7))
            asked = np.column_stack([np.full(jobs, 1 / jobs), rng.uniform(0, 1, (jobs, 2))])
            servers, held = tune_placement(asked, np.ones((1, 3)))
            assert None not in servers
            assert (held.sum(axis=0) <= 1 + 1e-9).all()
            assert (held >= np.minimum(asked, 1 / jobs) - 1e-9).all()

    def test_job_without_free_accelerators_is_skipped(self):
        asked = np.array([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]])
        servers, _ = tune_placement(asked, np.ones((2, 2)))
        assert servers == [0, 1, None]


class TestMuri:
    APART = np.array([[4.0, 0, 0, 0], [0, 4, 0, 0]])
    SAME = np.array([[4.0, 0, 0, 0], [4, 0, 0, 0]])

    def test_the_published_cases(self):
        assert (period(self.APART), interleaving_efficiency(self.APART)) == (4, 0.5)
        assert (period(self.SAME), interleaving_efficiency(self.SAME)) == (8, 0.25)

    def test_pairs_are_those_of_the_highest_total(self):
        for seed in range(60):
            rng = np.random.default_rng(seed)
            nodes = int(rng.integers(2, 8))
            weights = {
                pair: float(rng.random()) for pair in itertools.combinations(range(nodes), 2) if rng.random() < 0.7
            }
            best = 0.0
            for size in range(nodes // 2 + 1):
                for pairs in itertools.combinations(weights, size):
                    if len({node for pair in pairs for node in pair}) == 2 * size:
                        best = max(best, sum(weights[pair] for pair in pairs))
            assert sum(weights[pair] for pair in match_pairs(nodes, weights)) == pytest.approx(best)

    def test_autopack_splits_a_group_slower_than_its_members(self):
        stages = np.array([[1.0, 9, 0, 0], [9, 1, 0, 0], [1, 9, 0, 0]])
        slow = period(stages) > sum(period(stages[[job]]) for job in range(3))
        assert (len(group_jobs(stages, autopack=True)) > 1) == slow


class TestRecl:
    MICRO_S = 5.0

    def demand(self, app: str, accuracy: float, seen_s: float) -> Demand:
        return replace(factory.running(app, 50), observed=accuracy, observed_s=seen_s)

    def served(self, rises: dict[str, float], steps: int, window_s: float = 50.0) -> list[str]:
        """Return the application of each micro-window; its accuracy rises only in its micro-windows."""
        member, state, found = Recl(micro_window_s=self.MICRO_S), None, []
        accuracy = dict.fromkeys(rises, 0.3)
        for step in range(steps):
            now_s = step * self.MICRO_S
            demands = [self.demand(app, accuracy[app], now_s) for app in rises]
            reason = "timer" if now_s % window_s else "window"
            given = factory.window(*demands, start_s=now_s, window_s=window_s, state=state, reason=reason)
            allocation = member.allocate(given)
            state = allocation.state
            (learner,) = [
                one.app for one, grant in zip(given.demands, allocation.grants, strict=True) if grant.training_share > 0
            ]
            assert allocation.again_s == pytest.approx(self.MICRO_S)
            accuracy[learner] += rises[learner]
            found.append(learner)
        return found

    def test_each_training_has_a_micro_window_then_the_largest_gain(self):
        found = self.served({"a": 0.01, "b": 0.03, "c": -0.01}, 20)
        assert sorted(found[:3]) == sorted(found[10:13]) == ["a", "b", "c"]
        assert found[3:10] == found[13:] == ["b"] * 7

    def test_result_does_not_depend_on_the_order_of_applications(self):
        rises = {"a": 0.01, "b": 0.03, "c": 0.02}
        assert self.served(rises, 12) == self.served(dict(reversed(rises.items())), 12)

    def test_more_trainings_than_micro_windows_alternate(self):
        names = [f"app{i:02}" for i in range(25)]
        found = self.served(dict.fromkeys(names, 0.0), 50)
        assert sorted(found[:25]) == sorted(found[25:]) == names

    def test_micro_window_continues_across_other_events(self):
        first = Recl().allocate(factory.window(factory.running("b", 50), factory.running("c", 50)))
        comes = [factory.offered("a", 0.5, factory.config(20, 0.6)), factory.running("b", 48), factory.running("c", 50)]
        second = Recl().allocate(factory.window(*comes, start_s=2.0, state=first.state, reason="offer"))
        assert [grant.training_share > 0 for grant in second.grants] == [False, True, False]
        assert second.again_s == pytest.approx(3.0)
        ended = [comes[0], factory.demand("b", None), comes[2]]
        third = Recl().allocate(factory.window(*ended, start_s=3.0, state=second.state, reason="end"))
        assert [bool(grant.training_share) for grant in third.grants] == [True, False, False]
        assert third.again_s == pytest.approx(5.0)

    def test_gain_is_per_second_since_the_last_observation(self):
        """A change without training time in between is ignored."""
        known = observe(RecentGain(), self.demand("a", 0.5, 1.0), 4.0)
        same = observe(known, self.demand("a", 0.5, 1.0), 10.0)
        assert (known.per_s, same.per_s, same.spent_s) == (math.inf, math.inf, 10.0)
        assert observe(same, self.demand("a", 0.6, 30.0), 10.0).per_s == pytest.approx(0.005)
        assert observe(known, self.demand("a", 0.2, 30.0), 0.0).per_s == math.inf

    def test_single_training_is_not_interrupted(self):
        allocation = Recl().allocate(factory.window(factory.running("a", 50), factory.demand("b", None)))
        assert allocation.again_s is None
        assert allocation.grants[0].training_share == pytest.approx(0.8)


class TestZoo:
    SIGNATURES = np.eye(5) * 3

    def filled(self, room: int = 20) -> Zoo:
        zoo = Zoo(room)
        for number, signature in enumerate(self.SIGNATURES):
            zoo = zoo.remember(number, signature)
        return zoo

    def test_the_expert_of_the_same_data_ranks_first(self):
        noise = np.random.default_rng(0).normal(0, 0.3, (5, 5))
        ranks = [self.filled().rank(signature)[0] for signature in self.SIGNATURES + noise]
        assert ranks == [0, 1, 2, 3, 4]

    def test_least_recently_selected_expert_is_evicted(self):
        zoo = self.filled(room=5).select(0).remember(9, np.ones(5))
        assert sorted(one.number for one in zoo.experts) == [0, 2, 3, 4, 9]
        assert sorted(one.number for one in zoo.select(2).remember(10, np.ones(5)).experts) == [0, 2, 4, 9, 10]

    @pytest.mark.parametrize(
        ("scores", "now", "taken"), [({0: 0.9, 1: 0.5}, 0.6, 0), ({0: 0.9}, 0.895, None), ({}, 0.1, None)]
    )
    def test_expert_is_selected_only_above_the_margin(self, scores, now, taken):
        assert start_from(scores, now) == taken


def test_cost_of_several_resources_is_shared_per_resource():
    from driftlab.platform.scheduling.base import TrainingConfig
    from driftlab.platform.scheduling.muri import Muri

    loads = TrainingConfig("loads", TaskCost({"storage": 40.0}), None)
    computes = TrainingConfig("computes", TaskCost({"accelerator": 40.0}), None)
    grants = (
        Muri().allocate(factory.window(factory.offered("a", 0.5, loads), factory.offered("b", 0.5, computes))).grants
    )
    assert grants[0].interleave_group == grants[1].interleave_group == "a+b"
    assert grants[0].training_share["storage"] == grants[1].training_share["accelerator"] == pytest.approx(0.8)
