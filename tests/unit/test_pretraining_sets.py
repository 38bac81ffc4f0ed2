"""Networks with a pre-training set: the weights that they keep, and refused requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from request_factory import document, refusal

from driftlab.platform.networks.training.artifacts import Recipe, obtain
from driftlab.platform.networks.training.pretrain import pretrain

OWN = Recipe("tiny_classifier", classes=10, height=16, width=16, workloads="set:signs/vc", seed=3, steps=0, batch=8)
ELSEWHERE = replace(OWN, elsewhere="set:signs/vs", elsewhere_steps=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path))


def test_all_but_the_head_comes_from_the_other_set():
    learned, untrained = obtain(ELSEWHERE), pretrain(OWN)
    other = obtain(replace(OWN, workloads="set:signs/vs", classes=16, steps=2))
    head = {"head.weight", "head.bias"}
    assert all(np.array_equal(learned[name], untrained[name]) for name in head)
    assert all(np.array_equal(learned[name], other[name]) for name in set(other) - head)
    assert not np.array_equal(learned["first.0.weight"], untrained["first.0.weight"])


def test_keys_without_a_pretraining_set_are_unchanged():
    assert replace(ELSEWHERE, elsewhere="", elsewhere_steps=0).key() == OWN.key() != ELSEWHERE.key()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("pretrain_set=streets/dance",), "'streets/dance' is no labelled set"),
        (("pretrain_set=set:nothing",), "Unknown workload 'set:nothing'"),
        (("pretrain_set=set:signs/vc",), "'tiny' is no classifier"),
        (
            ("pretrain_set=set:signs/vc", "network=tiny_classifier", "pretrain_steps=0"),
            "student.pretrain_set needs pretrain_steps above 0",
        ),
    ],
)
def test_unusable_pretraining_sets_are_refused(changes, message):
    assert f"student.pretrain_set: {message}" in refusal(document(), tuple(f"student.{change}" for change in changes))
