"""Samples of an interval: evenly spaced frames, the newest included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.platform.streaming.base import StreamFacts, choose_times, newest_s


@pytest.mark.parametrize(
    ("start_s", "stop_s", "fps", "rate_fps", "times_s"),
    [
        (0.0, 4.0, 1.0, 1.0, (0.0, 1.0, 2.0, 3.0)),
        (0.0, 4.0, 2.0, 1.0, (0.5, 1.5, 2.5, 3.5)),
        (10.0, 14.0, 2.0, 0.5, (11.5, 13.5)),
        (0.0, 10.0, 4.0, 0.01, (9.75,)),
        (0.0, 1.0, 2.0, 99.0, (0.0, 0.5)),
        (0.0, 1.0, 2.0, math.inf, (0.0, 0.5)),
        (0.0, 1.0, 2.0, 1e308, (0.0, 0.5)),
        (0.3, 0.7, 2.0, 1.0, (0.5,)),
        (0.6, 0.9, 2.0, 1.0, ()),
        (3.0, 3.0, 2.0, 1.0, ()),
        (3.0, 2.0, 2.0, 1.0, ()),
    ],
)
def test_times_match_computed_cases(start_s, stop_s, fps, rate_fps, times_s):
    assert choose_times(start_s, stop_s, fps=fps, rate_fps=rate_fps) == times_s


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    first=st.integers(0, 500),
    count=st.integers(1, 300),
    fps=st.sampled_from([0.3, 1.0, 2.5, 7.0, 30.0]),
    rate_fps=st.floats(0.01, 60),
)
def test_samples_are_evenly_spaced_frames(first, count, fps, rate_fps):
    found = choose_times(first / fps, (first + count) / fps, fps=fps, rate_fps=rate_fps)
    numbers = np.rint(np.array(found) * fps).astype(int)
    assert list(found) == [int(number) / fps for number in numbers]
    assert numbers[-1] == first + count - 1
    assert first <= numbers[0]
    gaps = np.diff(np.concatenate([[first - 1], numbers]))
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1
    assert abs(len(found) - min(count, max(1.0, count * rate_fps / fps))) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("now_s", "fps", "duration_s", "time_s"),
    [
        (0.0, 2.0, 10.0, 0.0),
        (3.7, 2.0, 10.0, 3.5),
        (sum([0.1] * 3), 10.0, 1.0, 0.3),
        (sum([0.1] * 10), 10.0, 1.0, 0.9),  # just below 1, and a frame at 1 does not exist
        (9.9, 0.25, 10.0, 8.0),
        (0.1, 4.0, 0.2, 0.0),
    ],
)
def test_the_newest_frame(now_s, fps, duration_s, time_s):
    assert newest_s(now_s, StreamFacts(fps, duration_s)) == time_s
