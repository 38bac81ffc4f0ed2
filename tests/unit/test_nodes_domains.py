"""Domains that a device detects by itself: the times, the costs and the consequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_factory import FROZEN, columns, member, real_app, run_app, spent, stream

from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.sim.nodes import observing
from driftlab.platform.sim.nodes.observing import BATCH_FRAMES, DomainCounter, StreamObserver

FEATURES = 16


def batches(count: int, shift: float, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(shift, 1.0, (BATCH_FRAMES, FEATURES)).astype(np.float32) for _ in range(count)]


def counted(parts: list[np.ndarray], entropies: list[float] | None = None) -> list[int]:
    counter = DomainCounter()
    return [counter.add_batch(None if entropies is None else entropies[k], part) for k, part in enumerate(parts)]


class TestCounting:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_shift_of_features_is_found_within_four_batches(self, seed):
        found = counted([*batches(30, 0.0, seed), *batches(10, 2.0, seed + 10)])
        assert set(found[:30]) == {0} and found[33:] == [1] * 7

    def test_a_return_to_the_first_domain_counts_as_a_new_domain(self):
        found = counted([*batches(20, 0.0), *batches(20, 2.0, 1), *batches(20, 0.0, 2)])
        assert (found[19], found[39], found[59]) == (0, 1, 2)

    def test_entropy_without_distance_detects_a_domain(self):
        entropies = [0.2] * 20 + [0.8] * 5
        assert counted(batches(25, 0.0), entropies)[18:] == [0, 0, 0, 1, 1, 1, 1]

    def test_one_unusual_batch_is_not_enough(self):
        found = counted([*batches(20, 0.0), *batches(1, 1.0, 1), *batches(5, 0.0, 2)])
        assert set(found) == {0}

    def test_two_unusual_batches_that_do_not_follow_each_other_are_not_enough(self):
        entropies = [0.2] * 20 + [0.5] + [0.2] * 8 + [0.5] + [0.2] * 8
        assert set(counted(batches(len(entropies), 0.0), entropies)) == {0}
        assert counted(batches(22, 0.0), [0.2] * 20 + [0.5] * 2)[-2:] == [0, 1]  # two that do are

    def test_no_domain_is_detected_before_the_reference_is_complete(self):
        early = observing.REFERENCE + observing.MIN_BATCHES - 1
        assert set(counted([*batches(early, 0.0), *batches(3, 5.0, 1)])[:early]) == {0}


def seen_by(adaptation: Any = FROZEN, **params: Any) -> dict[str, list[Any]]:
    node = real_app(adaptation, frame_s=0.1, **params)
    return run_app(node, stream(12.0), np.arange(0, 13, 4.0))


class TestCosts:
    @pytest.mark.parametrize("name", ["frozen", "tent"])
    def test_each_predicted_frame_is_charged_one_more_pass(self, name):
        adaptation = (
            member(name, stream_batch=4, predict_on="frame", training_runs="concurrent") if name == "tent" else FROZEN
        )
        plain, detecting = seen_by(adaptation), seen_by(adaptation, detects_domains=True)
        frames = sum(detecting["frames.processed"])
        assert detecting["frames.latency_ms"][0] == pytest.approx(2 * plain["frames.latency_ms"][0])
        more_j = spent(detecting, "training") - spent(plain, "training")
        passes_j = spent(plain, "inference") / sum(plain["frames.processed"]) * frames
        assert more_j == pytest.approx(passes_j, rel=0.05)  # the last training batch is interrupted at another point
        assert detecting["facts"][0].memory_bytes > plain["facts"][0].memory_bytes

    def test_frames_without_time_for_inference_are_skipped(self):
        node = real_app(FROZEN, frame_s=0.4, detects_domains=True)
        found = run_app(node, stream(12.0), np.arange(0, 13, 4.0))
        assert sum(found["frames.processed"]) == 12  # every second frame of 24: 0.8 s a frame, 0.5 s between frames


class TestConsequences:
    @pytest.fixture
    def turns(self, monkeypatch):
        """Make another domain begin at the second batch."""
        numbers = iter([0, 1, *[1] * 100])

        def see(self: DomainCounter, entropy: float | None, features: np.ndarray) -> int:
            self.domain = next(numbers)
            return self.domain

        monkeypatch.setattr(DomainCounter, "add_batch", see)

    @pytest.mark.slow
    def test_an_episodic_member_resets_where_a_domain_is_detected(self, turns):
        steps = member("tent", stream_batch=6, predict_on="frame", training_runs="concurrent", episodic=True)
        told, detected = real_app(steps, frame_s=0.1), real_app(steps, frame_s=0.1, detects_domains=True)
        ends = [run_app(node, stream(12.0), np.arange(0, 13, 4.0)) for node in (told, detected)]
        assert len(ends[0]["adaptations.version"]) == 4
        assert len(ends[1]["adaptations.version"]) == 3  # frames 12 to 15 were pooled for a domain that had ended

    def test_its_statistics_have_the_detected_domain(self, turns):
        node, frames = real_app(FROZEN, frame_s=0.05, uses_statistics=True, detects_domains=True), stream(12.0)
        notes = []
        for start in (0.0, 4.0, 8.0):
            part = frames[(frames.times_s >= start) & (frames.times_s < start + 4)]
            columns([node.run_stream(part, None, start + 4, ((start, 1.0),)).rows])
            notes.append(node.stream_statistics().facts.domain)
        assert notes == [0, 1, 1]


def test_features_of_another_network_begin_a_new_reference():
    """Networks of other widths have features that cannot be compared."""
    observer, rng = StreamObserver(CLASSIFICATION), np.random.default_rng(0)
    first, other = (rng.normal(size=(20, width)).astype(np.float32) for width in (6, 4))
    assert observer._distance(first) == 0 and observer._distance(first + 1) > 1
    assert observer._distance(other) == 0 and observer._distance(other + 1) > 1
