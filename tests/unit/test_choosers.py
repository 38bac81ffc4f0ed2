"""Rules that choose among networks at a load reading, for every family."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.core.registry import builder_of, member_class
from driftlab.platform.core.systems import Member
from driftlab.platform.scaling import choosers
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.base import Budget, Chooser
from driftlab.platform.scaling.once_for_all import OnceForAll
from driftlab.platform.scaling.replay import LoadSession, RuleOutcome, best_per_frame, replay, replay_per_frame
from driftlab.platform.scaling.usnet import UsNet
from driftlab.platform.world import load

GOAL_S, FPS = 0.37, 2.5
FAMILIES = ("adascale", "branches", "legodnn", "nested", "usnet", "once_for_all", "independent", "early_exit")


def networks(count: int = 8) -> list[Variant]:
    """Return networks whose accuracy rises ever less with their latency."""
    sizes = np.linspace(0.15, 1.0, count).tolist()
    return [Variant(f"n{k}", 0.5 + 0.4 * size**0.4, 1000, 0.25 * size, 6e-5 * size) for k, size in enumerate(sizes)]


def readings(cpu: list[float], step_s: float = 0.5) -> tuple[LoadReading, ...]:
    return tuple(LoadReading(step_s * k, one, 10_000) for k, one in enumerate(cpu))


def budget(cpu: list[float], **more: object) -> Budget:
    found = readings(cpu)
    return Budget(latency_s=GOAL_S, load=found, now_s=found[-1].time_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rule_changes_the_choice_and_not_the_networks(family):
    plain = builder_of(Member("scaling", family))
    assert builder_of(Member("scaling", family, (("chooser", "expected"), ("predictor", "learned")))) == plain
    assert member_class("scaling", family)().chooser == "own"


@pytest.mark.parametrize("rule", ["prefer", "fastest", "adascale", "paper", "expected", "clairvoyant"])
def test_a_rule_chooses_alike_in_every_family(rule: Chooser):
    known, within = networks(), budget([0.3, 0.35, 0.5, 0.45])
    chosen = {choosers.select(made, known, within)[0] for made in
              (AdaScale(chooser=rule), OnceForAll(chooser=rule), UsNet(chooser=rule))}  # fmt: skip
    assert len(chosen) == 1


def test_the_rule_of_the_paper_has_no_floor():
    """AdaScale's own `paper` mode keeps a floor below the best accuracy; Eq. 7 takes the cheapest network."""
    known, within = networks(), budget([0.0, 0.0])
    assert choosers.select(AdaScale(chooser="paper"), known, within)[0] == 0
    assert choosers.select(AdaScale(mode="paper"), known, within)[0] > 0
    accurate = Budget(latency_s=GOAL_S, accuracy=0.85, load=readings([0.0]))
    chosen = choosers.select(AdaScale(chooser="paper"), known, accurate)[0]
    assert known[chosen].accuracy >= 0.85 > known[chosen - 1].accuracy


def test_the_fastest_network_follows_no_load():
    assert [choosers.choose("fastest", networks(), budget([cpu]), None)[0] for cpu in (0.0, 0.5, 1.0)] == [0, 0, 0]


def test_a_steady_load_leaves_no_doubt_and_a_jumping_one_does():
    latencies, room_s = np.linspace(0.01, 0.4, 40), GOAL_S * 0.55
    steady = choosers.in_time_probabilities(latencies, budget([0.5] * 200))
    assert (steady[latencies < 0.9 * room_s] > 0.97).all() and (steady[latencies > 1.1 * room_s] < 0.03).all()
    jumping = choosers.in_time_probabilities(latencies, budget([0.5, 0.5, 0.9, 0.9] * 50 + [0.5]))
    assert (np.diff(jumping) <= 1e-12).all()
    assert 0.2 < jumping[np.abs(latencies - 0.85 * room_s).argmin()] < 0.9


def test_a_doubtful_load_leads_to_a_faster_network():
    known = networks()
    steady, jumping = (budget([0.45] * 100 + [0.45]), budget([0.45, 0.45, 0.9] * 33 + [0.45, 0.45]))
    assert choosers.expected(known, jumping) < choosers.expected(known, steady)
    assert choosers.prefer(known, jumping) == choosers.prefer(known, steady)


def test_goals_hold_where_a_network_keeps_them():
    known = networks()
    thrifty = budget([0.0] * 50, energy_j=3e-5)
    assert known[choosers.expected(known, thrifty)].energy_j <= 3e-5
    assert choosers.expected(known, budget([0.0] * 50, memory_bytes=10)) == 0


def outcomes(rule: Chooser, seeds: range) -> list[RuleOutcome]:
    found = []
    for seed in seeds:
        drawn = load.draw(load.find("user"), 62.0, np.random.default_rng(seed))
        assert drawn is not None
        found.append(
            replay(partial(choosers.select, AdaScale(chooser=rule)), networks(), LoadSession(drawn, GOAL_S, FPS))
        )
    return found


@pytest.mark.slow
def test_a_choice_by_probability_is_right_in_time_more_often_than_adascale():
    """Random networks in place of the chosen ones lose: the gain is that of the rule."""
    ours, theirs, fixed = (outcomes(rule, range(4)) for rule in ("expected", "own", "fastest"))
    mean = lambda found, of: float(np.mean([getattr(one, of) for one in found]))  # noqa: E731
    assert mean(ours, "right") > mean(theirs, "right") and mean(ours, "late") < mean(theirs, "late")
    assert mean(ours, "right") > mean(fixed, "right") + 0.05


def test_no_rule_is_right_more_often_than_the_best_network_of_each_frame():
    drawn = load.draw(load.find("random"), 22.0, np.random.default_rng(3))
    assert drawn is not None
    best = best_per_frame(networks(), LoadSession(drawn, GOAL_S, FPS, 20.0))
    found = {}
    for rule in ("own", "prefer", "clairvoyant"):
        chosen = AdaScale(chooser=rule)
        session = LoadSession(drawn, GOAL_S, FPS, 20.0)
        found[rule] = replay(partial(choosers.select, chosen), networks(), session, foresees=chosen.uses_true_load)
        assert found[rule].right <= best.right and found[rule].late >= best.late
    assert found["prefer"].right < found["clairvoyant"].right


def test_a_frame_leaves_at_the_exit_that_is_in_time():
    """The load rises during the frame.

    The whole path would be late, as the speed until the first exit shows.
    """
    paths = [Variant("a", 0.6, 1, 0.1), Variant("a.b", 0.7, 1, 0.2), Variant("a.b.c", 0.8, 1, 0.3)]
    steps = (load.LoadStep(0.0, 0.0), load.LoadStep(0.05, 0.9))
    session = LoadSession(load.Load("rising", steps), 0.5, 1.0, 1.0)
    whole = replay(lambda *_: (2, None), paths, session)
    leaving = replay(lambda *_: (2, None), paths, session, leaves=True)
    assert (whole.right, whole.late) == (0.0, 1.0)
    assert (leaving.right, leaving.late) == (0.6, 0.0)


def test_a_frame_chooses_again_at_each_exit():
    """The time of the first stage shows whether the load has ended or begun."""
    paths = [Variant("a", 0.6, 1, 0.05), Variant("a.b", 0.7, 1, 0.12), Variant("a.c", 0.8, 1, 0.17)]
    for steps, whole, revised in (
        ((load.LoadStep(0.0, 0.9), load.LoadStep(0.1, 0.0)), 0.6, 0.8),
        ((load.LoadStep(0.0, 0.0), load.LoadStep(0.02, 0.83)), 0.0, 0.7),
        ((load.LoadStep(0.0, 0.0), load.LoadStep(0.02, 0.95)), 0.0, 0.6),
    ):
        session = LoadSession(load.Load("changing", steps), 0.5, 1.0, 1.0)
        assert replay_per_frame(paths, session).right == whole
        assert replay_per_frame(paths, session, revises=True).right == revised


def test_choices_per_stage_are_closest_to_the_best_network_of_each_frame():
    """A choice at the capture beats one at a reading.

    A frame that chooses again at each exit beats both.
    """
    paths = [
        Variant(".".join((*["base"] * stage, operator)), 0.45 + 0.1 * stage + gain, 1, 0.06 * stage + cost)
        for stage in range(4) for operator, gain, cost in (("svd", 0.0, 0.02), ("base", 0.1, 0.06))
    ]  # fmt: skip
    found = []
    for seed in range(3):
        drawn = load.draw(load.find("user"), 32.0, np.random.default_rng(seed))
        assert drawn is not None
        session = LoadSession(drawn, GOAL_S, FPS, 30.0)
        rule = partial(choosers.select, AdaScale(chooser="prefer"))
        rules = (replay(rule, paths, session), replay_per_frame(paths, session),
                 replay_per_frame(paths, session, revises=True), best_per_frame(paths, session))  # fmt: skip
        found.append([one.right for one in rules])
    by_reading, per_frame, per_stage, best = np.mean(found, axis=0)
    assert by_reading < per_frame < per_stage <= best
