"""Messages of the loop: late servers, refusals, damage and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_factory import (
    COST,
    DOWN_BYTES,
    PHASE,
    RESENT_BYTES,
    UP_BYTES,
    FakeSession,
    FixedMember,
    Labels,
    PerWindow,
    ScriptedStreaming,
    about,
    rows,
    run,
    stored,
    times,
    tracking,
    uploads,
)

from driftlab.platform.core.records import Applied
from driftlab.platform.core.registry import Member
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.scheduling import uniform
from driftlab.platform.scheduling.base import Allocation, Grant
from driftlab.platform.sim.setting import BuiltNetwork
from driftlab.platform.sim.teaching import RETRY_S
from driftlab.platform.streaming.base import RESYNC_BYTES, DownlinkPlan
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.link import MessageDamage


class TestSwitching:
    def test_an_application_receives_only_changes_of_its_network_also_after_waiting(self):
        chosen = iter([0, 0, None, 0, 1, 1])
        allocations = (Allocation((Grant(0.0 if one is None else 1.0, variant=one),)) for one in chosen)
        scheduling = FixedMember(PerWindow(lambda window: next(allocations)))
        session = FakeSession(switch=lambda node, variant: variant)
        family = BuiltNetwork("tiny", 2 * single_profile(COST), "digest", "the family's weights")
        _, loop = run(ScriptedStreaming(), scheduling=scheduling, session=session, duration_s=60.0, student=family)
        assert [(note.now_s, note.facts) for note in session.of("switch")] == [(0.0, 0), (40.0, 1)]
        assert [row["paged_in_bytes"] for row in rows(loop, "shares")] == [40, 0, 0, 40, 40, 0]


def away(gone_s: float, back_s: float) -> tuple[Event, ...]:
    """The application is there from the start, and between two times it is not."""
    app = AppGoals("segmentation")
    return Event(0.0, "start", app), Event(gone_s, "stop", app), Event(back_s, "start", app)


class TestDepartures:
    """Windows begin at 0, 10, 20 and 30 s; an application that is away from 10 to 25 s misses two."""

    def test_an_update_in_transfer_is_not_applied(self):
        """It leaves the server at 9.5 s and arrives at 10.2 s."""
        streaming = ScriptedStreaming(uploads(5.0, 11.0, 28.0))
        session, loop = run(streaming, duration_s=40.0, events=away(10.0, 25.0))
        first, second = rows(loop, "updates")
        assert (first["reason"], first["accepted"], first["version"]) == ("its application had gone", None, None)
        assert [row["refused"] for row in rows(loop, "transfers")] == [None, first["reason"], None, None]
        assert [note.now_s for note in session.of("apply")] == about([33.2])
        assert second["arrive_s"] == about(33.2)
        assert streaming.seen == [(0, 0), (5.0, 0), (11.0, 0), (28.0, 0)]  # and the reply did not reach the device
        assert rows(loop, "runs")[0]["updates"] == 1

    def test_no_row_of_it_appears_until_it_is_back(self):
        """Uniform divides the device at each arrival and departure, also between two windows."""
        session, loop = run(ScriptedStreaming(uploads(5.0, 12.0)), duration_s=40.0, events=away(10.0, 25.0))
        shares = [(row["time_s"], row["window_s"]) for row in rows(loop, "shares")]
        assert shares == [(0.0, 10.0), (25.0, 5.0), (30.0, 10.0)]
        assert [note.args for note in session.of("capture")] == [(0, 10), (25, 30), (30, 40)]
        assert [note.now_s for note in session.of("run_stream")] == [10, 30, 40]
        assert [row["queued_s"] for row in rows(loop, "transfers")] == about([5.0, 9.5])

    def test_a_scheduler_called_per_window_divides_the_device_at_the_next_one(self):
        scheduling = FixedMember(PerWindow(uniform.Uniform().allocate))
        session, loop = run(ScriptedStreaming(), duration_s=40.0, events=away(10.0, 25.0), scheduling=scheduling)
        assert [row["time_s"] for row in rows(loop, "shares")] == [0.0, 30.0]
        assert [note.args for note in session.of("capture")] == [(0, 10), (30, 40)]

    @pytest.mark.parametrize("arrives", [True, False])
    def test_neither_plans_nor_labels_are_taken(self, arrives):
        """They leave the server at 8.5 s."""
        events = away(9.5 if arrives else 9.0, 25.0)
        streaming, session = ScriptedStreaming(uploads(5.0, 26.0), phase=None), tracking()
        _, loop = run(streaming, events=events)
        assert streaming.seen[-1] == (26.0, int(arrives))
        refused = None if arrives else "its application had gone"
        assert rows(loop, "transfers")[1]["refused"] == refused
        _, loop = run(Labels(uploads(5.0)), session=session, adaptation=Member("adaptation", "frozen"), events=events)
        assert rows(loop, "transfers")[1]["refused"] == refused
        assert len(session.of("track")) == arrives

    def test_it_requests_weights_after_its_return_and_not_earlier(self):
        """The update that arrives at 7.2 s is torn; every weight would arrive at 8.616 s."""
        replies = iter([Applied(0, accepted=False, reason="torn"), Applied(2, accepted=True)])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(replies))
        _, loop = run(ScriptedStreaming(uploads(2.0)), session=session, events=away(8.0, 20.0))
        torn, missed, taken = rows(loop, "updates")
        assert (torn["reason"], missed["reason"], taken["reason"]) == ("torn", "its application had gone", None)
        first, again = (row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync")
        assert first == about(7.2)
        assert 20.0 <= again <= 20.0 + RETRY_S

    @pytest.mark.parametrize("back_s", [13.0, 25.0])
    def test_after_a_switch_it_comes_back_to_none_loaded(self, back_s):
        """It goes at 12 s, in the window that began with the switch; it is back at 13 s, before the next one."""
        asked = []
        at = {0.0: 0, 10.0: 1}

        def allocate(window):
            asked.extend((window.start_s, demand.running) for demand in window.demands)
            return Allocation((Grant(1.0, variant=at.get(window.start_s, 1)),) * len(window.demands))

        session = FakeSession(switch=lambda node, variant: variant)
        family = BuiltNetwork("tiny", 2 * single_profile(COST), "digest", "the family's weights")
        scheduling = FixedMember(PerWindow(allocate))
        events, given = away(12.0, back_s), {"scheduling": scheduling, "session": session, "student": family}
        _, loop = run(ScriptedStreaming(), duration_s=50.0, events=events, **given)
        back = 20.0 if back_s < 20 else 30.0
        assert asked == [(0.0, None), (10.0, 0), (back, None), *((at, 1) for at in np.arange(back + 10, 50, 10))]
        moved = [(row["time_s"], row["paged_in_bytes"], row["paged_out_bytes"]) for row in rows(loop, "shares")]
        assert moved[:3] == [(0.0, 40, 0), (10.0, 40, 40), (back, 40, 0)]
        assert [(note.now_s, note.facts) for note in session.of("switch")] == [(0.0, 0), (10.0, 1)]


class TestLateServers:
    """Uploads leave at 5, 6, 7 s and arrive at 6.5, 7.5, 8.5 s; the first round takes 6.5 to 9.5 s."""

    def test_one_visit_takes_all_that_waits_and_trains_once(self):
        session, loop = run(ScriptedStreaming(uploads(5.0, 6.0, 7.0)))
        first, second = rows(loop, "updates")
        assert (first["uploads"], first["samples"]) == (1, 10)
        assert (second["uploads"], second["samples"]) == (2, 20)
        wanted = [9.5, 13.5, 13.5, 14.5]
        assert times(second, "label_start_s", "label_end_s", "train_start_s", "train_end_s") == about(wanted)
        assert len(session.of("label")) == len(session.of("store")) == 3
        assert len(session.of("train")) == 2

    def test_samples_stored_together_reach_the_member_in_one_call(self):
        stored_samples = []

        class StoredRecorder(ScriptedStreaming):
            def plan_downlink(self, state, session, stored, now_s):
                stored_samples.append((stored.frames, stored.unlisted_labels, stored.buffered, stored.phis))
                return DownlinkPlan(state, PHASE)

        run(StoredRecorder(uploads(5.0, 6.0, 7.0)))
        assert stored_samples == [(10, 2, 40, (0.1, 0.3)), (20, 4, 40, (0.1, 0.3, 0.1, 0.3))]

    def test_uploads_that_arrive_during_a_round_wait_for_the_next(self):
        _, loop = run(ScriptedStreaming(uploads(5.0, 6.0, 7.0, 12.0)))
        assert [row["uploads"] for row in rows(loop, "updates")] == [1, 2, 1]

    def test_uploads_that_arrive_while_the_gpu_is_busy_join_the_round(self):
        """The second device's first upload waits until 9.5 s; its round includes all uploads until then."""
        _, loop = run(ScriptedStreaming(uploads(5.0, 6.0)), devices=2)
        served = [(row["device"], row["uploads"], row["label_start_s"]) for row in rows(loop, "updates")]
        assert served == [
            ("device-0", 1, about(6.5)),
            ("device-1", 2, about(9.5)),
            ("device-0", 1, about(14.5)),
        ]

    def test_all_labels_that_waited_go_back(self):
        session = tracking()
        session, loop = run(Labels(uploads(5.0, 6.0, 7.0)), session=session, adaptation=Member("adaptation", "frozen"))
        down = [row["queued_s"] for row in rows(loop, "transfers") if row["direction"] == "down"]
        assert down == about([8.5, 12.5, 12.5])
        assert len(session.of("track")) == 3


class TestRefusals:
    """The update of an upload at 2 s arrives at 7.2 s and is refused; a request takes 0.516 s."""

    def ran(self, *replies: Applied, send_s: tuple[float, ...] = (2.0,), **script: Any):
        given = iter(replies)
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(given), **script)
        return run(ScriptedStreaming(uploads(*send_s)), session=session)

    def test_a_refusal_has_a_reason_and_costs_a_request_and_all_weights(self):
        session, loop = self.ran(Applied(0, accepted=False, reason="torn"), Applied(2, accepted=True))
        sent = [(row["direction"], row["kind"], row["bytes"], row["refused"]) for row in rows(loop, "transfers")]
        assert sent == [
            ("up", "samples", UP_BYTES, None),
            ("down", "update", DOWN_BYTES, "torn"),
            ("up", "resync", RESYNC_BYTES, None),
            ("down", "update", RESENT_BYTES, None),
        ]
        assert [note.now_s for note in session.of("resend")] == about([7.2 + 0.516])
        assert session.of("apply")[1].args[0] is session.of("resend")[0]
        refused, resent = rows(loop, "updates")
        assert (refused["accepted"], refused["reason"], refused["version"]) == (False, "torn", None)
        assert (resent["accepted"], resent["reason"], resent["version"]) == (True, None, 2)
        assert (resent["uploads"], resent["samples"], resent["label_start_s"]) == (0, 0, None)
        (whole,) = rows(loop, "runs")
        assert whole["updates"] == 1
        assert whole["uplink_bytes"] == UP_BYTES + RESYNC_BYTES

    def test_it_repeats_its_request_until_the_weights_arrive(self):
        torn = Applied(0, accepted=False, reason="torn")
        _, loop = self.ran(torn, torn, torn, Applied(4, accepted=True))
        asked = [row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert np.diff(asked) == pytest.approx([0.516 + 0.9 + RETRY_S] * 2)
        assert [row["version"] for row in rows(loop, "updates")] == [None, None, None, 4]

    def test_it_sends_one_request_for_two_refusals(self):
        """A second update was on its way when the first was refused."""
        torn, stale = (Applied(0, accepted=False, reason=reason) for reason in ("torn", "out of order"))
        session, loop = self.ran(torn, stale, Applied(3, accepted=True), send_s=(2.0, 3.0))
        kinds = [row["kind"] for row in rows(loop, "transfers")]
        assert kinds.count("resync") == len(session.of("resend")) == 1

    def test_all_weights_arrive_even_if_the_next_phase_has_no_sample(self):
        usable = iter([3.0, None])
        session, loop = self.ran(
            Applied(0, accepted=False, reason="torn"),
            Applied(2, accepted=True),
            send_s=(2.0, 6.2),
            store=lambda node, frames, labels, stamp_s: stored(frames.facts, usable_s=next(usable)),
        )
        assert [row["reason"] and row["reason"][:4] for row in rows(loop, "updates")] == ["torn", "no s", None]
        assert len(session.of("resend")) == 1

    def test_a_device_that_refused_an_update_did_not_hear_of_its_plan(self):
        """The state counts 11 per reply; the full transfer has the server's state at its time."""
        given = iter([Applied(0, accepted=False, reason="torn"), *[Applied(2, accepted=True)] * 3])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(given))
        streaming = ScriptedStreaming(uploads(2.0, 7.5, 12.0))
        run(streaming, session=session, duration_s=13.0)
        assert streaming.seen == [(0, 0), (2.0, 0), (7.5, 0), (12.0, 11)]

    def test_no_request_is_sent_after_the_end(self):
        torn = Applied(0, accepted=False, reason="torn")
        _, loop = self.ran(*[torn] * 30)
        asked = [row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert 5 < len(asked) < 20
        assert max(asked) < 30.0


class TestDamagedMessages:
    """The messages with these numbers in one direction arrive damaged; `apply` does not check them."""

    def ran(self, monkeypatch, up: tuple[int, ...] = (), down: tuple[int, ...] = (), **given: Any):
        count, torn = {"up": 0, "down": 0}, {"up": up, "down": down}

        def draw(direction: str, share: float) -> MessageDamage | None:
            count[direction] += 1
            return MessageDamage("cut", 0) if count[direction] in torn[direction] else None

        def rng_for(seed: int, purpose: str, device: str, direction: str) -> Any:
            return direction

        monkeypatch.setattr("driftlab.platform.sim.app.link.draw_damage", draw)
        monkeypatch.setattr("driftlab.platform.sim.app.rng_for", rng_for)
        return run(**given)

    def test_torn_samples_are_not_served_and_have_a_row(self, monkeypatch):
        session, loop = self.ran(monkeypatch, up=(1,), streaming=ScriptedStreaming(uploads(2.0, 12.0)))
        assert [row["refused"] for row in rows(loop, "transfers") if row["direction"] == "up"] == ["torn", None]
        assert len(session.of("label")) == len(rows(loop, "updates")) == 1

    def test_a_torn_plan_does_not_reach_the_member(self, monkeypatch):
        streaming = ScriptedStreaming(uploads(2.0, 12.0, 20.0), phase=None)
        _, loop = self.ran(monkeypatch, down=(1,), streaming=streaming)
        assert streaming.seen == [(0, 0), (2.0, 0), (12.0, 0), (20.0, 2)]
        assert [row["refused"] for row in rows(loop, "transfers") if row["kind"] == "plan"] == ["torn", None, None]

    def test_a_torn_request_is_repeated_without_a_reply(self, monkeypatch):
        replies = iter([Applied(0, accepted=False, reason="torn"), Applied(2, accepted=True)])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(replies))
        session, loop = self.ran(monkeypatch, up=(2,), streaming=ScriptedStreaming(uploads(2.0)), session=session)
        asked = [(row["queued_s"], row["refused"]) for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert asked == [(about(7.2), "torn"), (about(7.2 + 0.516 + RETRY_S), None)]
        assert len(session.of("resend")) == 1

    def test_labels_that_are_torn_reach_the_device_as_they_are(self, monkeypatch):
        given = {"streaming": Labels(uploads(5.0)), "adaptation": Member("adaptation", "frozen"), "session": tracking()}
        session, _ = self.ran(monkeypatch, down=(1,), **given)
        (tracked,) = session.of("track")
        assert tracked.args[-1] == MessageDamage("cut", 0)


class TestLabels:
    def test_labels_for_tracking_return_without_a_learner(self):
        session = tracking()
        session, loop = run(Labels(uploads(5.0)), session=session, adaptation=Member("adaptation", "frozen"))
        down = rows(loop, "transfers")[1]
        assert (down["kind"], down["queued_s"], down["arrive_s"]) == ("labels", about(8.5), about(9.2))
        (tracked,) = session.of("track")
        decoding_s = 2 * 32 * 48 / hardware.find("phone-hi").macs_per_s
        assert tracked.args == (session.of("pack")[0], 4.5, tracked.now_s, None)
        assert tracked.now_s == pytest.approx(down["arrive_s"] + decoding_s, abs=1e-12)
        assert "learner" not in {node.kind for _, node, _ in session.placed}
        assert rows(loop, "updates") == []
        (placed,) = (args[0] for _, node, args in session.placed if node.kind == "application")
        assert (placed.tracks, placed.chained) == (True, True)

    def test_labels_and_plans_that_arrive_after_the_end_are_not_taken(self):
        session, loop = run(Labels(uploads(26.0)), session=tracking(), adaptation=Member("adaptation", "frozen"))
        late = rows(loop, "transfers")[1]
        assert (late["arrive_s"], late["refused"]) == (about(30.2), "it did not arrive in the session")
        assert not session.of("track")
        _, loop = run(ScriptedStreaming(uploads(27.9), phase=None))
        late = rows(loop, "transfers")[1]
        assert late["kind"] == "plan"
        assert late["arrive_s"] > 30 and late["refused"] == "it did not arrive in the session"

    def test_labels_may_be_carried_straight_from_the_frame_they_tell_of(self):
        direct = Member("streaming", "remote_tracking", (("chained", False),)).make()
        session = tracking()
        session, _ = run(direct, session=session, adaptation=Member("adaptation", "frozen"), duration_s=3.0)
        assert not next(args[0] for _, node, args in session.placed if node.kind == "application").chained
