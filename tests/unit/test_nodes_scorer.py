"""The scorer against brute force, and that its memory does not grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.platform.core.metrics import confusion, miou
from driftlab.platform.sim.nodes.frame_results import WINDOW_S, Scorer

CLASSES = 4


def maps(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, CLASSES, (2, n, 6, 5), dtype=np.uint8)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    fps=st.sampled_from([0.3, 1.0, 3.0, 7.5]),
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_each_frame_is_scored_over_the_last_ten_seconds(fps, parts, seed):
    n = sum(parts)
    predicted, truth = maps(n, seed)
    times_s = np.arange(n) / fps
    scorer, found, done = Scorer(CLASSES), [], 0
    for length in parts:
        part = slice(done, done + length)
        found += scorer.score(times_s[part], predicted[part], truth[part]).window.tolist()
        done += length
    for index in range(n):
        inside = (times_s > times_s[index] - WINDOW_S + 1e-9) & (times_s <= times_s[index])
        assert found[index] == pytest.approx(float(miou(confusion(predicted[inside], truth[inside], CLASSES))))


def test_only_scored_classes_are_averaged_and_another_prediction_misses_them():
    predicted, truth = maps(3, seed=1)
    found = Scorer(CLASSES, scored=(1, 3)).score(np.arange(3.0), predicted, truth)
    overlaps = [
        [((seen == c) & (true == c)).sum() / ((((seen == c) & np.isin(true, (1, 3))) | (true == c)).sum())]
        for seen, true in zip(predicted, truth, strict=True)
        for c in (1, 3)
    ]
    assert found.frame == pytest.approx(np.array(overlaps).reshape(3, 2).mean(axis=1))
    assert found.by_class is not None and found.by_class[[0, 2], 0].sum() == 0


def test_a_live_prediction_is_restricted_to_the_scored_classes_too():
    predicted, truth = maps(2, seed=2)
    scorer, direct = Scorer(CLASSES, scored=(0,)), Scorer(CLASSES, scored=(0,))
    late = scorer.score(np.arange(2.0), predicted, truth, live={1: predicted[0]})
    shown = direct.score(np.arange(2.0), predicted[[0, 0]], truth)
    assert late.live == pytest.approx(shown.live)
