"""Surrogate sizes and training sequences: ElasticDNN's solvers, Eq. 8, and the joint scheduler."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import learners_factory as factory
import numpy as np
import pytest

from driftlab.platform.scheduling import inference_shares
from driftlab.platform.scheduling.base import TrainingOffer
from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.ekya import run_thief
from driftlab.platform.scheduling.elasticdnn import (
    FilterGrained,
    Rules,
    Sizes,
    durations,
    evolve,
    exhaustive,
    objective,
)
from driftlab.platform.scheduling.enumerated import Enumeration, plan_enumerated
from driftlab.platform.scheduling.evaluation import AccuracyFactor, evaluate, trainings_of
from driftlab.platform.scheduling.joint import Joint
from driftlab.platform.scheduling.sequencing import plan_steps
from driftlab.platform.scheduling.sizing import best_config


def sizes(size, before, after, seconds) -> Sizes:
    """Add size 0 to a table of sizes; it keeps the accuracy of the smallest network."""
    size, before, after, seconds = (np.array(one, np.float64) for one in (size, before, after, seconds))
    none, now = np.zeros((len(size), 1)), before[:, :1]
    return Sizes(*(np.hstack(pair) for pair in ((none, size), (now, before), (now, after), (none, seconds))))


PAPER = sizes(
    [[0.1, 0.2, 0.4]] * 2,
    [[0.40, 0.45, 0.48], [0.60, 0.62, 0.63]],
    [[0.55, 0.70, 0.78], [0.68, 0.70, 0.71]],
    [[10, 20, 40], [12, 24, 48]],
)
RULES = Rules(120.0)


def drawn(seed: int) -> Sizes:
    """Draw at most 4096 combinations, some of which do not end within ten minutes."""
    rng = np.random.default_rng(seed)
    apps, count = int(rng.integers(2, 5)), int(rng.integers(3, 9))
    size, now = np.sort(rng.uniform(0.05, 1, (apps, count))), rng.uniform(0.2, 0.6, (apps, 1))
    before = now + rng.uniform(0, 0.1, (apps, 1)) * size
    after = before + np.sort(rng.uniform(0, 0.4, (apps, count)))
    return sizes(size, before, after, size * rng.uniform(50, 300, (apps, 1)))


def value(given: Sizes, vector, rules: Rules) -> float:
    return float(objective(given, vector[None], rules)[0][0])


class TestSizes:
    def test_the_published_instance(self):
        vectors = np.array([[3, 1], [2, 1], [2, 2]])
        assert exhaustive(PAPER, RULES).tolist() == [3, 1]
        assert objective(PAPER, vectors, RULES)[0] * 2 == pytest.approx([1.295, 1.2935, 1.284667], abs=5e-7)
        assert durations(PAPER, vectors[:1], RULES) == pytest.approx(np.array([[50, 60]]))

    def test_printed_equation_selects_the_largest_sizes(self):
        printed = replace(RULES, eq8="as_printed")
        best = exhaustive(PAPER, printed)
        assert best.tolist() == [3, 3]
        assert value(PAPER, best, printed) * 2 == pytest.approx(1.374)
        assert durations(PAPER, best[None], printed) == pytest.approx(np.array([[80, 96]]))

    def test_size_zero_is_chosen_if_no_sizes_end_in_time(self):
        assert 0 in exhaustive(PAPER, Rules(20.0)).tolist()
        assert exhaustive(PAPER, Rules(1.0)).tolist() == [0, 0]
        assert evolve(PAPER, Rules(1.0)).tolist() == [0, 0]

    def test_allow_none_permits_no_retraining(self):
        worse = sizes([[0.5], [0.5]], [[0.5], [0.7]], [[0.8], [0.6]], [[20], [20]])
        assert exhaustive(worse, Rules(200.0)).tolist() == [1, 1]
        assert exhaustive(worse, Rules(200.0, allow_none=True)).tolist() == [1, 0]

    @pytest.mark.slow
    def test_evolution_is_near_the_optimum(self):
        parts = []
        for seed in range(100):
            given, rules = drawn(seed), Rules(600.0)
            found = evolve(given, rules)
            assert (durations(given, found[None], rules) <= 600.0 * (1 + 1e-9)).all()
            parts.append(value(given, found, rules) / value(given, exhaustive(given, rules), rules))
        assert sum(part >= 0.999 for part in parts) >= 95
        assert min(parts) >= 0.95

    @pytest.mark.slow
    def test_evolution_meets_a_tight_limit(self):
        """Five applications of eight sizes; hardly any combination but the smallest sizes ends in time."""
        rng = np.random.default_rng(0)
        for _ in range(5):
            size = np.sort(rng.uniform(0.05, 1, (5, 8)))
            given = sizes(size, np.full((5, 8), 0.4), 0.4 + 0.5 * size, size * 100)
            rules = Rules(1.2 * float(durations(given, np.ones((1, 5), np.int64), RULES).max()))
            best, found = exhaustive(given, rules), evolve(given, rules)
            assert (best > 0).all()
            assert value(given, found, rules) >= 0.99 * value(given, best, rules)
            assert (found > 0).all()

    def test_work_conserving_shares_shorten_the_last_training(self):
        given = sizes([[0.4], [0.1]], [[0.5], [0.5]], [[0.8], [0.6]], [[10], [20]])
        both = np.array([[1, 1]])
        assert durations(given, both, RULES) == pytest.approx(np.array([[12.5, 100]]))
        assert durations(given, both, replace(RULES, work_conserving=True)) == pytest.approx(np.array([[12.5, 30]]))

    def test_shares_are_proportional_to_sizes(self):
        member = FilterGrained(horizon_s=600.0)
        a = factory.offered("a", 0.5, factory.config(20, 0.7, 0.2))
        first = member.allocate(factory.window(a, factory.offered("b", 0.5, factory.config(60, 0.9, 0.6))))
        shares = [grant.training_share for grant in first.grants]
        assert shares == pytest.approx([0.125, 0.375])
        runs = factory.window(factory.running("a", 10), factory.running("b", 30), state=first.state)
        assert [grant.training_share for grant in member.allocate(runs).grants] == pytest.approx(shares)


def test_best_configuration_depends_on_the_share():
    app = factory.app(0, 0.5, (10, 0.6), (50, 0.9))
    assert (best_config(app, 0.1, 200.0), best_config(app, 0.5, 200.0)) == (0, 1)


def clairvoyant(apps: Sequence[LearningApp], window_s: float) -> float:
    """Return the best accuracy over all configurations, orders, and shares in steps of 0.05."""
    splits = np.array([split for split in itertools.product(range(1, 21), repeat=len(apps)) if sum(split) <= 20]) / 20
    scale, spent = factory.factors(apps, splits), splits.sum(axis=1)

    def rate(now: tuple[float, ...], share: float) -> float:
        return float((scale[spent <= share + 1e-9] * now).sum(axis=1).max())

    def best(now: tuple[float, ...], left: tuple[int, ...], left_s: float) -> float:
        score = rate(now, 1.0) * left_s
        for i in left:
            for one in apps[i].candidates:
                after = (*now[:i], one.accuracy_after, *now[i + 1 :])
                for learn in np.arange(4, 20, 2) / 20:
                    passed_s = one.seconds / learn
                    if passed_s < left_s:
                        rest = tuple(j for j in left if j != i)
                        score = max(score, rate(now, 1 - learn) * passed_s + best(after, rest, left_s - passed_s))
        return score

    start = tuple(app.now for app in apps)
    return best(start, tuple(range(len(apps))), window_s) / window_s / len(apps)


class TestJoint:
    @pytest.mark.slow
    def test_it_is_within_1_percent_of_the_clairvoyant_optimum(self):
        for seed in range(20):
            apps = factory.apps(seed, 2, configs=2)
            assert factory.played(apps, 150) >= 0.99 * clairvoyant(apps, 150)

    @pytest.mark.slow
    def test_gains_count_in_the_part_of_frames_that_an_overloaded_processor_predicts(self):
        """Full gains cost 1 to 4 points on these draws."""
        for seed in (16, 22, 23):
            apps = factory.overloaded(seed)
            assert factory.played(apps, 150) >= clairvoyant(apps, 150) - 0.002

    @pytest.mark.slow
    def test_it_is_within_a_point_of_all_plans_under_overload(self):
        """The enumeration finds no less than a coarser one of another form."""
        for seed in range(12):
            apps = factory.overloaded(seed)
            given = Enumeration(apps)
            best = given.best(given.start, frozenset(range(len(apps))), 150.0)[0] / 150 / len(apps)
            assert seed % 4 or best >= clairvoyant(apps, 150) - 1e-9
            assert best - 0.01 <= factory.played(apps, 150) <= best + 0.002

    def test_an_enumerated_plan_trains_what_gains_and_nothing_else(self):
        """A training of half a point a second for ten seconds is worth it, one that loses accuracy is not."""
        gains, loses = factory.app(0, 0.5, (10, 0.8), (200, 0.9)), factory.app(1, 0.7, (10, 0.6), (20, 0.7))
        steps = plan_enumerated([gains, loses], 150.0)
        assert (steps.first, steps.chosen) == (0, (0, None))
        assert steps.score > 0
        assert plan_enumerated([gains, loses], 5.0).first is None

    def test_no_constant_shares_are_better(self):
        """All configurations of three applications, each with 100 random divisions of the processor."""
        for seed in range(5):
            apps, rng = factory.apps(seed, 3, configs=2), np.random.default_rng(seed)
            best = 0.0
            for chosen in itertools.product((None, 0, 1), repeat=3):
                shares = rng.dirichlet(np.ones(6), 100)
                shares[:, :3][:, [k is None for k in chosen]] = 0
                trainings = trainings_of(apps, chosen)
                best = max(best, *(evaluate(trainings, one[:3], one[3:], 200) for one in shares.tolist()))
            assert factory.played(apps, 200) >= 0.99 * best

    @pytest.mark.parametrize("count", [1, 2, 4, 8])
    def test_it_is_at_least_as_accurate_as_the_thief(self, count):
        for seed in range(8):
            apps = factory.apps(seed, count)
            assert factory.played(apps, 200) >= run_thief(apps, 200).score - 1e-3

    @pytest.mark.parametrize(("count", "limit_s"), [(4, 0.005), (101, 0.08)])
    def test_it_decides_quickly(self, count, limit_s):
        """Three configurations each; minimum of several process times."""
        apps, taken = [replace(app, full_share=0.005) for app in factory.apps(0, count)], []
        for _ in range(4):
            started = time.process_time()
            plan_steps(apps, 600)
            taken.append(time.process_time() - started)
        assert min(taken) <= limit_s

    def test_division_among_many_is_near_the_exact_one(self, monkeypatch):
        """Concave hulls of twelve applications against dynamic programming."""
        apps = factory.apps(0, 12)
        scale, now = AccuracyFactor(np.array([app.full_share for app in apps])), np.array([app.now for app in apps])
        found = []
        for exact in (12, 0):
            monkeypatch.setattr(inference_shares, "EXACT", exact)
            splits = [inference_shares.split_inference_share(apps, share) for share in (0.3, 0.6, 1.0)]
            found.append([float(now @ scale(split)) for split in splits])
            assert [float(split.sum()) for split in splits] == pytest.approx([0.3, 0.6, 1.0])
        assert found[1] == pytest.approx(found[0], rel=0.02)
        assert inference_shares.lost_accuracy(apps)[70] == pytest.approx(found[0][2] - found[0][0], rel=0.05)

    def test_first_training_has_the_highest_gain_per_second(self):
        for seed in range(5):
            apps = [replace(app, full_share=0.001) for app in factory.apps(seed, 8)]
            steps = plan_steps(apps, 500)
            gains = [
                0.0 if k is None else (app.candidates[k].accuracy_after - app.now) / app.candidates[k].seconds
                for app, k in zip(apps, steps.chosen, strict=True)
            ]
            assert sum(gain > 0 for gain in gains) > 5
            assert steps.first == int(np.argmax(gains))

    def test_network_of_zero_accuracy_keeps_an_inference_share(self):
        wrong = factory.demand("b", TrainingOffer("running", accuracy_before=0.0, accuracy_after=0.0))
        grants = Joint().allocate(factory.window(factory.offered("a", 0.5, factory.config(20, 0.9)), wrong)).grants
        assert min(grant.inference_share for grant in grants) > 0

    def test_high_energy_price_stops_training(self):
        config = replace(factory.config(10, 0.9), cost=replace(factory.config(10, 0.9).cost, joules=50.0))
        given = factory.window(factory.offered("a", 0.5, config))
        assert [Joint(joule_price=price).allocate(given).grants[0].config for price in (0.0, 100.0)] == [0, None]

    def test_estimates_are_corrected_by_observations(self):
        """Each phase offers 0.6 and yields 0.4: after some phases no gain is expected, and no training runs."""
        member, state, configs = Joint(), None, []
        for _ in range(4):
            offer = factory.window(factory.offered("a", 0.5, factory.config(40, 0.6)), state=state)
            allocation = member.allocate(offer)
            configs.append(allocation.grants[0].config)
            after = replace(factory.demand("a", None), observed=0.4, observed_by="teacher", observed_s=0.0)
            state = member.allocate(factory.window(after, state=allocation.state, reason="end")).state
        assert configs[0] == 0
        assert configs[-1] is None

    def test_trainings_run_in_sequence(self):
        member = Joint()
        names = factory.running("a", 50, 0.5, 0.6), factory.running("b", 10, 0.5, 0.9)
        first = member.allocate(factory.window(*names))
        assert [bool(grant.training_share) for grant in first.grants] == [False, True]
        ended = replace(names[1], learning=None)
        second = member.allocate(factory.window(names[0], ended, state=first.state, reason="end", start_s=30.0))
        assert [bool(grant.training_share) for grant in second.grants] == [True, False]

    def test_training_beyond_the_patience_runs_in_parallel(self):
        member, state = Joint(patience_s=100.0), None
        names = factory.running("a", 5000, 0.5, 0.6), factory.running("b", 10, 0.5, 0.9)
        for start_s in (0.0, 50.0, 120.0):
            allocation = member.allocate(factory.window(*names, state=state, start_s=start_s))
            state = allocation.state
            learns = [bool(grant.training_share) for grant in allocation.grants]
            assert learns == [start_s > 100, True] or names[0].learning is None
