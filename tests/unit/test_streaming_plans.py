"""Plans of each streaming member against computed cases."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Stored, Trained
from driftlab.platform.core.registry import Member
from driftlab.platform.streaming.base import Seen, StreamFacts

SESSION = StreamFacts(fps=2.0, duration_s=25.0)
SEEN = Seen()
STORED = Stored(5, 5, 4.5, 4.5, (0.2,))


def member(name: str, **params: Any) -> Any:
    return Member("streaming", name, tuple(params.items())).make()


def test_local_sends_no_message():
    assert member("local").plan_uplink(None, SESSION, 0.0, SEEN) is None
    assert member("local").plan_downlink(None, SESSION, STORED, 0.0).phase is None


class TestOneTime:
    def test_it_uploads_the_beginning_once(self):
        one_time = member("one_time", sample_s=4, rate_fps=0.5)
        state = one_time.start(SESSION)
        plan = one_time.plan_uplink(state, SESSION, 0.0, SEEN)
        assert (plan.times_s, plan.send_s, plan.next_s) == ((1.5, 3.5), 4.0, None)
        assert one_time.plan_uplink(state, SESSION, 4.0, SEEN) is None


class TestForesight:
    def test_static_bound_samples_the_whole_stream_once(self):
        foresight = member("foresight", span="stream", rate_fps=0.2)
        plan = foresight.plan_uplink(None, SESSION, 0.0, SEEN)
        assert (plan.times_s, plan.send_s) == ((4.5, 9.5, 14.5, 19.5, 24.5), 0.0)
        assert foresight.plan_uplink(None, SESSION, plan.next_s, SEEN) is None

    def test_oracle_samples_each_window_before_it_begins(self):
        foresight = member("foresight", window_s=10, rate_fps=0.2)
        plans, now_s = [], 0.0
        while now_s < 25.0:
            plans.append(foresight.plan_uplink(None, SESSION, now_s, SEEN))
            now_s = plans[-1].next_s
        assert [plan.send_s for plan in plans] == [0.0, 10.0, 20.0]
        assert [plan.times_s for plan in plans] == [(4.5, 9.5), (14.5, 19.5), (24.5,)]

    def test_oracle_of_a_window_drops_older_samples(self):
        assert member("foresight").plan_downlink(None, SESSION, STORED, 10.0).oldest_s == 10.0


class TestJustInTime:
    def trained(self, score: float | None) -> Trained:
        return Trained(1, 1, 1, 1, None, None, score, "", 0.0)

    def test_it_sends_the_newest_frame_now(self):
        plan = member("just_in_time", min_interval_s=1.0, max_interval_s=4.0).plan_uplink(2.0, SESSION, 3.7, SEEN)
        assert (plan.times_s, plan.send_s, plan.next_s) == ((3.5,), 3.7, 5.7)

    def test_interval_is_at_least_one_frame(self):
        plan = member("just_in_time").plan_uplink(0.01, SESSION, 3.0, SEEN)
        assert plan.next_s == 3.5

    @pytest.mark.parametrize(
        ("interval_s", "score", "after_s"),
        [(1.0, 0.9, 2.0), (3.0, 0.9, 4.0), (1.0, 0.5, 0.5), (0.6, None, 0.5), (1.0, 0.75, 0.5)],
    )
    def test_interval_doubles_above_the_threshold_and_halves_below(self, interval_s, score, after_s):
        just_in_time = member("just_in_time", min_interval_s=0.5, max_interval_s=4.0, threshold=0.75)
        assert just_in_time.learn(interval_s, self.trained(score)) == after_s

    def test_it_trains_on_the_newest_frame_up_to_the_threshold(self):
        downlink = member("just_in_time", max_steps=3).plan_downlink(1.0, SESSION, STORED, 5.0)
        assert (downlink.phase, downlink.oldest_s, downlink.state) == (Phase(3, stop_score=0.75), 4.5, 1.0)


class TestAms:
    def test_it_uploads_a_buffer_per_interval(self):
        ams = member("ams", interval_s=4, max_fps=0.5)
        plan = ams.plan_uplink(ams.start(SESSION), SESSION, 8.0, SEEN)
        assert (plan.times_s, plan.send_s, plan.next_s) == ((9.5, 11.5), 12.0, None)

    def test_it_trains_on_the_horizon(self):
        ams = member("ams", horizon_s=30)
        downlink = ams.plan_downlink(ams.start(SESSION), SESSION, STORED, 50.0)
        assert (downlink.phase, downlink.oldest_s, downlink.dense) == (Phase(), 20.0, False)

    @pytest.mark.parametrize(("phi", "slower"), [(0.0, True), (0.9, False)])
    def test_static_scene_is_sampled_less(self, phi, slower):
        ams = member("ams")
        state = ams.start(SESSION)
        for _ in range(40):
            state = ams.plan_downlink(state, SESSION, Stored(5, 5, 4.5, 4.5, (phi,)), 5.0).state
        assert (state.fps == pytest.approx(0.1)) == slower
        assert (state.interval_s == pytest.approx(60.0)) == slower

    @pytest.mark.parametrize(("late_s", "share"), [(2.0, 1.0), (3.0, 1.0), (6.0, 0.5), (60.0, 0.2)])
    def test_patience_reduces_the_rate_if_the_server_is_late(self, late_s, share):
        """The φ-scores give the highest rate; the patience is 0.3 intervals of 10 s."""
        patient, paper = member("ams", patience=0.3), member("ams")
        now_s, state = STORED.newest_s + late_s, paper.start(SESSION)
        stored = Stored(5, 5, 4.5, 4.5, (1.0,))
        assert patient.plan_downlink(state, SESSION, stored, now_s).rate_fps == pytest.approx(share)
        assert paper.plan_downlink(state, SESSION, stored, now_s).rate_fps == 1.0
        assert member("ams", patience=1e-3).plan_downlink(state, SESSION, STORED, now_s).rate_fps >= 0.1

    def test_first_rate_is_configurable(self):
        assert member("ams", initial_fps=0.3).start(SESSION).fps == 0.3
        with pytest.raises(RequestError, match=r"'patience' is 0.0.*'initial_fps' is 2.0, must be in \[0.1, 1.0\]"):
            member("ams", initial_fps=2.0, patience=0.0)
        with pytest.raises(RequestError, match="must be none with control = fixed"):
            member("ams", control="fixed", patience=0.6)

    def test_interval_grows_at_a_fixed_period(self):
        clocked, still = member("ams", atr_step_s=10.0), replace(STORED, phis=(0.0,))
        state, now_s, visits = clocked.start(SESSION), 0.0, []
        for _ in range(16):
            now_s += state.interval_s
            state = clocked.plan_downlink(state, SESSION, still, now_s).state
            visits.append((now_s, state.interval_s))
        slow = [visit for visit in visits if visit[1] > 10.0]
        assert len(slow) >= 5 and slow[0][1] == 12.0
        for (before_s, shorter_s), (then_s, longer_s) in itertools.pairwise(slow):
            assert longer_s - shorter_s == 2.0 * (then_s // 10 - before_s // 10)

    def test_a_period_of_no_length_is_refused(self):
        with pytest.raises(RequestError, match=r"'atr_step_s' is .*must be "):
            member("ams", atr_step_s=0.0)

    @pytest.mark.parametrize(("now_s", "phase"), [(99.9, None), (100.0, Phase())])
    def test_first_training_may_be_delayed(self, now_s, phase):
        ams = member("ams", first_train_s=100)
        downlink = ams.plan_downlink(ams.start(SESSION), SESSION, STORED, now_s)
        assert downlink.phase == phase
        assert downlink.state.fps != ams.start(SESSION).fps  # the rates follow from the first sample on

    def test_plans_contain_current_and_next_rate(self):
        ams = member("ams")
        state = ams.start(SESSION)
        assert ams.plan_uplink(state, SESSION, 0.0, SEEN).rate_fps == 1.0
        downlink = ams.plan_downlink(state, SESSION, Stored(5, 5, 4.5, 4.5, (0.0,)), 5.0)
        assert (downlink.rate_fps, downlink.interval_s) == (downlink.state.fps, downlink.state.interval_s)
        assert downlink.rate_fps == pytest.approx(0.8, abs=1e-3)


def test_remote_tracking_uploads_the_newest_frame_periodically():
    tracking = member("remote_tracking", every_s=1.5)
    plan = tracking.plan_uplink(None, SESSION, 3.7, SEEN)
    assert (plan.times_s, plan.send_s) == ((3.5,), 3.7)
    assert plan.next_s == pytest.approx(5.2)
    assert tracking.plan_downlink(None, SESSION, STORED, 5.0).phase is None
