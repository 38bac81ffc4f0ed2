"""Claims about schedulers of applications that learn on one device."""

from __future__ import annotations

import pytest
from claims_factory import ask, measured, scored, word


def test_one_scheduler_is_compared_with_every_training_baseline_in_every_setting():
    good = {"joint": {"dance": 0.7, "running": 0.6}, "ekya": {"dance": 0.5, "running": 0.55}, "no_custom": 0.9}
    found = measured(ask("JOINT-5", scored(**good, recl={"dance": 0.6, "running": 0.4})))
    assert found.value == pytest.approx(0.05, abs=1e-3)
    assert found.note.startswith("on running with") and found.note.endswith("against ekya, the lowest of 4")
    assert word("JOINT-5", scored(**good)) == "reproduced"
    assert word("JOINT-5", scored(**good, recl={"dance": 0.8, "running": 0.4})) == "not reproduced"
    assert word("JOINT-5", scored(joint=0.7)) == "not testable here"


def test_never_learning_is_a_baseline_of_a_busy_device_and_free_learning_is_not():
    bounds = {"free-learning": 0.9, "true-gains": 0.88, "optimum": 0.89}
    found = {"joint-boundaries": 0.7, "ekya": 0.5, "joint": 0.6, **bounds}
    assert word("JOINT-8", scored(**found, no_custom=0.65)) == "reproduced"
    assert word("JOINT-8", scored(**found, no_custom=0.75)) == "not reproduced"
    assert word("JOINT-9", scored(**found, no_custom=0.65)) == "reproduced"
    assert word("JOINT-10", scored(**found, no_custom=0.65)) == "not reproduced"


def test_with_true_gains_joint_may_lose_a_point_to_all_plans_and_no_more():
    assert word("JOINT-11", scored(**{"true-gains": 0.7}, optimum=0.7)) == "reproduced"
    assert word("JOINT-11", scored(**{"true-gains": 0.68}, optimum=0.7)) == "not reproduced"


def test_a_shared_zoo_is_compared_where_scenes_recur_across_cameras():
    shared = {"recurring": 0.6, "alone": 0.5}
    assert word("RECL-1", scored(recl=shared, **{"recl-own": {"recurring": 0.5, "alone": 0.7}})) == "reproduced"
    assert word("RECL-1", scored(recl=shared, **{"recl-own": {"recurring": 0.7, "alone": 0.4}})) == "not reproduced"


def test_shares_and_trials_of_the_motivation_are_compared():
    assert word("MANY-10", scored(**{"optimum": 0.8, "uniform-learning": 0.6})) == "reproduced"
    assert word("MANY-10", scored(**{"optimum": 0.6, "uniform-learning": 0.6})) == "not reproduced"
    assert word("MANY-11", scored(ekya=0.5, no_custom=0.6)) == "reproduced"
    assert word("MANY-11", scored(ekya=0.7, no_custom=0.6)) == "not reproduced"
