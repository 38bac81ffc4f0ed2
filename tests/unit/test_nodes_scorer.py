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
