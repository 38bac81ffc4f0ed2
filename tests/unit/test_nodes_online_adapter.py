"""Online training by hand: results do not depend on the cuts of calls, later frames or labels."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_factory import (
    FROZEN,
    HALF,
    INFERENCE_J,
    INFERENCE_S,
    ONLINE_MEMBERS,
    TRAINING_J,
    TRAINING_S,
    application,
    between,
    columns,
    cut_schedule,
    latencies_s,
    made,
    missed,
    run_app,
    spent,
    steps,
    stream,
)

from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.sim.nodes import metering


class TestByHand:
    """Batches of 4 at 2 frames per second; training on a batch takes 1.3 frame periods."""

    @pytest.fixture(autouse=True)
    def made_up_cost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Charge stated passes only: the costs of these tests are made up."""
        monkeypatch.setattr(metering, "TOLERANCE", float("inf"))

    def test_exclusive_training_misses_the_frames_that_arrive_meanwhile(self):
        found = run_app(application(steps()), stream(10.0), (0.0, 10.0))
        ends = [1.5 + 2.5 * number + INFERENCE_S + TRAINING_S for number in range(4)]
        assert missed(found) == [4, 9, 14, 19]
        assert found["frames.version"] == [number // 5 for number in range(20)]
        assert latencies_s(found) == pytest.approx([INFERENCE_S] * 16)
        assert found["adaptations.start_s"] == pytest.approx([end - TRAINING_S for end in ends])
        assert found["adaptations.end_s"] == pytest.approx(ends)
        assert found["adaptations.isolated_s"] == pytest.approx([TRAINING_S] * 4)
        assert found["adaptations.version"] == [1, 2, 3, 4]

    def test_its_energy_its_time_and_its_memory(self):
        """The memory has four inputs of layer b, the gradients of its weights, and the member's state."""
        found = run_app(application(steps()), stream(10.0), (0.0, 3.0, 10.0))
        assert found["adaptations.energy_j"] == pytest.approx([TRAINING_J] * 4, rel=1e-12)
        assert found["adaptations.memory_bytes"] == [4 * 200 + 8 + 1000] * 4
        assert max(facts.memory_bytes for facts in found["facts"]) == 1808
        assert spent(found, "inference") == pytest.approx(16 * INFERENCE_J, rel=1e-12)
        assert spent(found, "training") == pytest.approx(4 * TRAINING_J, rel=1e-12)
        assert sum(facts.busy_s for facts in found["facts"]) == pytest.approx(16 * INFERENCE_S + 4 * TRAINING_S)

    def test_concurrent_training_misses_no_frame_and_predicts_on_the_other_share(self):
        found = run_app(application(steps(training_runs="concurrent")), stream(10.0), (0.0, 10.0), HALF, HALF)
        assert missed(found) == []
        assert latencies_s(found) == pytest.approx(
            [INFERENCE_S] * 4 + [2 * INFERENCE_S, 2 * INFERENCE_S, INFERENCE_S, INFERENCE_S] * 4
        )
        starts = [1.5 + 2 * number + INFERENCE_S for number in range(5)]
        assert found["adaptations.start_s"] == pytest.approx(starts)
        assert found["adaptations.end_s"][:4] == pytest.approx([start + 2 * TRAINING_S for start in starts[:4]])
        assert found["frames.version"] == [0] * 6 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 2

    def test_training_at_the_end_of_the_session_is_charged_in_part(self):
        found = run_app(application(steps(training_runs="concurrent")), stream(10.0), (0.0, 10.0), HALF, HALF)
        part = (10.0 - 9.5 - INFERENCE_S) / 2 / TRAINING_S
        assert found["adaptations.end_s"][4] is None
        assert found["adaptations.energy_j"] == pytest.approx([TRAINING_J] * 4 + [part * TRAINING_J])
        assert found["adaptations.isolated_s"] == pytest.approx([TRAINING_S] * 4 + [part * TRAINING_S])
        assert spent(found, "training") == pytest.approx((4 + part) * TRAINING_J)

    def test_predictions_that_wait_for_their_batch(self):
        """Four at once take four times as long here, and then they are learned from: two frames are missed."""
        found = run_app(application(steps(predict_on="batch")), stream(10.0), (0.0, 10.0))
        assert missed(found) == [4, 5, 10, 11, 16, 17, 18, 19]
        waits = [1.5, 1.0, 0.5, 0.0]
        assert latencies_s(found) == pytest.approx([wait + 4 * INFERENCE_S for wait in waits] * 3)
        busy_s = sum(facts.busy_s for facts in found["facts"])
        assert busy_s == pytest.approx(3 * (4 * INFERENCE_S + TRAINING_S))

    def test_the_last_batch_of_a_session_is_busy_for_its_work_and_not_for_its_wait(self):
        found = run_app(application(steps(predict_on="batch")), stream(2.0), (0.0, 1.8))
        assert sum(facts.busy_s for facts in found["facts"]) == pytest.approx(4 * INFERENCE_S)

    @pytest.mark.parametrize("cuts", [(0.0, 10.0), (0.0, 4.8, 10.0), (0.0, 4.6, 4.7, 4.8, 4.9, 10.0)])
    def test_inference_continues_when_concurrent_training_ends(self, cuts):
        """At 4.5 s half a processor; half is done when training ends at 4.75 s, the rest has the whole."""
        found = run_app(application(steps(training_runs="concurrent"), macs_per_s=16e6), stream(5.0), cuts, HALF, HALF)
        assert found["adaptations.end_s"][0] == pytest.approx(4.75)
        assert latencies_s(found)[4:10] == pytest.approx([0.5] * 5 + [0.375])

    def test_an_episode_that_ends_during_concurrent_training_and_inference(self):
        """Training lasts from 1.75 s to the new scene at 2.1 s; the inference of 2 s starts on half a share."""
        seen = stream(4.0)
        seen = replace(seen, scenes=(seen.times_s >= 2.5).astype(np.int32))
        node = application(steps(training_runs="concurrent", episodic=True), macs_per_s=16e6, domain_oracle=True)
        before = node.finish().facts.digest
        found = run_app(node, between(seen, 0, 3.0), (0.0, 3.0), HALF, HALF)
        assert found["adaptations.skipped"] == ["broken off: another domain has begun"]
        assert found["adaptations.end_s"] == [2.5]
        part = (2.5 - 1.75) / 2 / 1.5
        assert found["adaptations.isolated_s"] == pytest.approx([part * 1.5])
        assert latencies_s(found) == pytest.approx([0.25] * 4 + [0.5, 0.25])
        assert found["digest"] == [before]

    @pytest.mark.parametrize("training_runs", ["exclusive", "concurrent"])
    def test_more_steps_never_cost_less(self, training_runs):
        schedules = (HALF, HALF) if training_runs == "concurrent" else (((0.0, 1.0),),)
        runs = [
            run_app(application(steps(training_runs=training_runs, steps=count)), stream(10.0), (0.0, 10.0), *schedules)
            for count in (1, 2, 3, 5)
        ]
        for fewer, more in itertools.pairwise(runs):
            for name in ("isolated_s", "energy_j", "memory_bytes"):
                assert more[f"adaptations.{name}"][0] >= fewer[f"adaptations.{name}"][0]
            assert more["adaptations.energy_j"][0] > fewer["adaptations.energy_j"][0]
            assert len(missed(more)) >= len(missed(fewer))

    def test_zero_steps_cost_the_same_as_no_adaptation(self):
        """Equal bits: predictions, times and counts."""
        idle, skips = (run_app(application(one), stream(10.0), (0.0, 3.3, 10.0)) for one in (FROZEN, steps(steps=0)))
        assert skips["adaptations.skipped"] == ["no steps"] * 5
        assert skips["adaptations.energy_j"] == skips["adaptations.isolated_s"] == [0.0] * 5
        assert spent(skips, "training") == 0.0
        for name in (one for one in idle if one.startswith("frames.")):
            assert skips[name] == idle[name], name

    def test_training_over_the_limit_of_the_device_is_interrupted(self):
        found = run_app(application(steps(), training_batch_limit_s=0.13), stream(2.5), (0.0, 2.5))
        assert found["adaptations.isolated_s"] == pytest.approx([0.13])
        assert found["adaptations.energy_j"] == pytest.approx([0.2 * TRAINING_J])
        assert found["frames.version"] == [0] * 5
        assert "0.13 s are allowed" in found["adaptations.skipped"][0]


SCHEDULES = [
    (((0.0, 1.0),), ()),
    (((0.0, 0.6), (3.3, 0.2), (5.0, 0.0), (6.1, 1.0), (9.75, 0.4)), ()),
    (((0.0, 0.5),), ((0.0, 0.5),)),
    (((0.0, 0.3), (4.4, 0.6), (7.0, 0.1), (10.2, 0.5)), ((0.0, 0.2), (4.0, 0.0), (6.7, 0.4), (10.2, 0.5))),
]
LENGTH_S = 12.0  # of the stream that is cut: eight batches, and a new scene at 8 s
PLACES = st.integers(1, round(20 * LENGTH_S) - 1)  # of cuts, in twentieths of a second


def cut(name: str, which: int, cuts: tuple[float, ...]) -> dict[str, list[Any]]:
    """Run the stream from cut to cut; where labels come, each comes between two calls."""
    node, (inference, training), replies = made(name), SCHEDULES[which], []
    if ONLINE_MEMBERS[name].name == "frozen" or dict(ONLINE_MEMBERS[name].params).get("training_runs") != "concurrent":
        training = ()
    frames, coming = stream(LENGTH_S), [(2.0, 3.1), (6.5, 8.0), (7.0, 11.0)] if name == "tracking" else []
    for start_s, stop_s in itertools.pairwise(cuts):
        while coming and coming[0][1] < stop_s:
            captured_s, arrive_s = coming.pop(0)
            labels = frames.labels[round(2 * captured_s)]
            assert node.track(SEGMENTATION.pack(labels), captured_s, arrive_s).facts.accepted
        schedules = [cut_schedule(schedule, start_s, stop_s) for schedule in (inference, training) if schedule]
        replies.append(node.run_stream(between(frames, start_s, stop_s), None, stop_s, *schedules))
    ended = node.finish()
    found = columns([*(reply.rows for reply in replies), ended.rows])
    facts = [*(reply.facts for reply in replies), ended.facts.last]
    found["joules"] = [round(sum(sum(fact.joules.values()) for fact in facts), 12)]
    found["busy_s"] = [round(sum(fact.busy_s for fact in facts), 9)]
    found["digest"] = [ended.facts.digest]
    return found


@cache
def uncut(name: str, which: int) -> dict[str, list[Any]]:
    return cut(name, which, (0.0, LENGTH_S))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONLINE_MEMBERS)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(places=st.sets(PLACES, min_size=3, max_size=12), which=st.integers(0, len(SCHEDULES) - 1))
def test_results_do_not_depend_on_the_cuts_of_calls(name, places, which):
    cuts = (0.0, *(place / 20 for place in sorted(places)), LENGTH_S)
    wanted, found = uncut(name, which), cut(name, which, cuts)
    assert len(wanted["frames.frame"]) == 2 * LENGTH_S
    assert found == wanted


@cache
def honest_run(name: str, stop_s: float) -> dict[str, list[Any]]:
    return run_app(made(name), stream(stop_s), (0.0, stop_s))


@pytest.mark.parametrize("name", [name for name in ONLINE_MEMBERS if name != "tracking"])
@pytest.mark.parametrize("known", [7, 16, 25])
def test_later_frames_do_not_change_earlier_results(name, known):
    """Frames from some index on are noise; a prediction stays if its batch was full by then."""
    seen = stream(16.0)
    noise = np.random.default_rng(known).integers(0, 256, seen.images.shape, dtype=np.uint8)
    later = np.arange(len(seen)) >= known
    poisoned = replace(seen, images=np.where(later[:, None, None, None], noise, seen.images))
    honest, other = honest_run(name, 16.0), run_app(made(name), poisoned, (0.0, 16.0))
    if "batch" in name:
        processed = [which for which in range(known) if honest["frames.processed"][which]]
        stop = next((which for which in processed[len(processed) // 3 * 3 :]), known)
    else:
        stop = known
    assert stop > 0
    for column in (one for one in honest if one.startswith("frames.")):
        assert other[column][:stop] == honest[column][:stop], column
    assert other != honest


@pytest.mark.parametrize("name", [name for name in ONLINE_MEMBERS if name not in ("tracking", "frozen", "steps")])
def test_labels_in_frames_reach_no_label_free_member(name):
    seen = stream(10.0)
    spoilt = replace(seen, labels=np.full_like(seen.labels, 3))
    honest, other = (run_app(made(name), frames, (0.0, 10.0)) for frames in (seen, spoilt))
    assert other["digest"] == honest["digest"]
    for column in honest:
        if not any(word in column for word in ("score", "accuracy", "facts")):
            assert other[column] == honest[column], column
