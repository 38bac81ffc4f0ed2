"""Networks with a pre-training set: the weights that they keep, and refused requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from request_factory import document, refusal

from driftlab.platform.networks.training.artifacts import Recipe, obtain
from driftlab.platform.networks.training.pretrain import draw_data, pretrain

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


def test_source_domains_take_turns_in_training_and_validation():
    plain, found = draw_data(OWN), draw_data(replace(OWN, shifts=("inversion", "fog")))
    for name in ("train", "val"):
        before, after = getattr(plain, name), getattr(found, name)
        assert np.array_equal(after.labels, before.labels)
        assert np.array_equal(after.images[::3], before.images[::3])
        assert np.array_equal(after.images[1::3], 255 - before.images[1::3])
        assert all(not np.array_equal(a, b) for a, b in zip(after.images[2::3], before.images[2::3], strict=True))
    assert np.array_equal(found.test.images, plain.test.images)
    assert found.plain is not None and np.array_equal(found.plain.images, plain.train.images)


def test_keys_without_a_pretraining_set_are_unchanged():
    assert replace(ELSEWHERE, elsewhere="", elsewhere_steps=0).key() == OWN.key() != ELSEWHERE.key()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("pretrain_shifts=[rotation]",), "'rotation' is no shift of single frames"),
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
    place = changes[0].partition("=")[0]
    assert f"student.{place}: {message}" in refusal(document(), tuple(f"student.{change}" for change in changes))
