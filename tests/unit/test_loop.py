"""The loop on a session that only takes notes: every time in the tables follows from a few lines of arithmetic."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loop_factory import (
    COST,
    DOWN_BYTES,
    FPS,
    PHASE,
    RESENT_BYTES,
    STEP_S,
    UP_BYTES,
    WIRE,
    FakeSession,
    Given,
    Labels,
    Scripted,
    rows,
    run,
    shown,
    stored,
    times,
    tracking,
    trained,
    uploaded,
    uploads,
    watched,
)

from driftlab.errors import RunError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import Captured, Finished, Passes, Receipt
from driftlab.platform.loop.cell import AppSpec, Cell, DeviceSpec
from driftlab.platform.loop.context import AppContext, BuiltNetwork, CellContext, Site
from driftlab.platform.loop.learning import RETRY_S
from driftlab.platform.loop.loop import Loop
from driftlab.platform.nodes.specs import StreamSpec, TeacherSpec
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.scheduling import uniform
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Grant
from driftlab.platform.streaming.base import PLAN_BYTES, RESYNC_BYTES, DownlinkPlan, Sampling
from driftlab.platform.systems.system import System
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import App, Event
from driftlab.platform.world.cost import inference_s
from driftlab.platform.world.damage import Damage


@pytest.fixture(scope="module")
def ran():
    return run(Scripted(uploads(5.0)))


class TestOneUpload:
    """10 frames leave at 5 s: 1 s on the link, 0.5 s in flight, 2 s with the teacher, 1 s of training, and back."""

    def test_the_uplink_takes_its_bytes_and_half_a_round_trip(self, ran):
        up = rows(ran[1], "transfers")[0]
        assert (up["direction"], up["kind"], up["bytes"], up["sequence"]) == ("up", "samples", UP_BYTES, 1)
        assert times(up, "queued_s", "start_s", "sent_s", "arrive_s") == pytest.approx([5.0, 5.0, 6.0, 6.5])

    def test_the_server_labels_then_trains(self, ran):
        (update,) = rows(ran[1], "updates")
        wanted = [6.5, 8.5, 8.5, 9.5]
        assert times(update, "teach_start_s", "teach_end_s", "train_start_s", "train_end_s") == pytest.approx(wanted)

    def test_the_update_arrives_after_its_bytes_and_half_a_round_trip(self, ran):
        down = rows(ran[1], "transfers")[1]
        assert (down["direction"], down["kind"], down["bytes"], down["sequence"]) == ("down", "update", DOWN_BYTES, 1)
        assert times(down, "queued_s", "start_s", "sent_s", "arrive_s") == pytest.approx([9.5, 9.5, 9.7, 10.2])
        (applied,) = ran[0].of("apply")
        assert applied.args == (ran[0].of("train")[0], down["arrive_s"], None)
        assert applied.now_s == down["arrive_s"] == rows(ran[1], "updates")[0]["arrive_s"]

    def test_the_row_says_what_happened(self, ran):
        (update,) = rows(ran[1], "updates")
        wanted = {
            "version": 1,
            "samples": 10,
            "unknown": 2,
            "buffered": 40,
            "iterations": 50,
            "values": 500,
            "bytes": DOWN_BYTES,
        }
        assert {name: update[name] for name in wanted} == wanted
        assert update["phi"] == pytest.approx(0.2)
        assert (update["accepted"], update["reason"]) == (True, None)

    def test_calls_come_in_the_order_of_virtual_time(self, ran):
        notes = [(note.now_s, note.verb) for note in ran[0].notes if note.verb not in ("capture", "finish")]
        assert notes == sorted(notes, key=lambda note: note[0])
        learning = ["receive", "reveal", "label", "store", "forget", "train"]
        assert [verb for _, verb in notes] == ["upload", *learning, "watch", "apply", "watch", "watch"]
        assert [now_s for now_s, _ in notes] == pytest.approx([0, *[6.5] * 4, 8.5, 8.5, 10, 10.2, 20, 30])

    def test_work_starts_when_its_virtual_start_comes_and_is_waited_for_at_its_end(self, ran):
        store, train = ran[0].of("store")[0], ran[0].of("train")[0]
        assert (store.now_s, store.asked_s) == (pytest.approx(6.5), pytest.approx([8.5]))
        assert (train.now_s, train.asked_s) == (pytest.approx(8.5), pytest.approx([9.5]))

    def test_payloads_go_from_job_to_job(self, ran):
        verbs = ("upload", "receive", "reveal", "label", "store")
        (upload,), (receive,), (reveal,), (label,), (store,) = (ran[0].of(verb) for verb in verbs)
        (sampling,) = upload.args
        assert receive.args == (upload, sampling, (32, 48), None)
        assert (reveal.node.kind, reveal.args) == ("device", (sampling.times_s,))
        assert label.args == (reveal,)
        assert store.args == (receive, label, None)
        assert [note.args[0] for note in ran[0].of("watch")] == ran[0].of("capture")

    def test_the_trainer_is_placed_when_the_first_samples_come(self, ran):
        placed = {node.kind: now_s for now_s, node, _ in ran[0].placed}
        assert placed == {"teacher": 0, "device": 0, "application": 0, "learner": pytest.approx(6.5)}


class TestQueues:
    def test_the_gpu_serves_in_the_order_of_arrival(self):
        _, loop = run(Scripted(uploads(5.0)), devices=3)
        served = [(row["device"], row["teach_start_s"], row["train_end_s"]) for row in rows(loop, "updates")]
        assert served == [
            ("device-0", pytest.approx(6.5), pytest.approx(9.5)),
            ("device-1", pytest.approx(9.5), pytest.approx(12.5)),
            ("device-2", pytest.approx(12.5), pytest.approx(15.5)),
        ]

    def test_two_gpus_serve_two_devices_at_once(self):
        _, loop = run(Scripted(uploads(5.0)), devices=3, gpus=2)
        assert [row["teach_start_s"] for row in rows(loop, "updates")] == pytest.approx([6.5, 6.5, 9.5])

    def test_one_device_is_served_one_upload_at_a_time_whatever_the_gpus(self):
        """Two phases on one copy of a model at once would send updates that build on each other out of order."""
        _, loop = run(Scripted(uploads(5.0, 6.0)), gpus=2)
        assert [row["teach_start_s"] for row in rows(loop, "updates")] == pytest.approx([6.5, 9.5])

    def test_the_gpu_is_free_while_an_update_travels(self):
        _, loop = run(Scripted(uploads(5.0)), devices=2)
        first, second = rows(loop, "updates")
        assert second["teach_start_s"] == first["train_end_s"] < first["arrive_s"]

    def test_a_link_carries_one_message_after_another(self):
        _, loop = run(Scripted(uploads(5.0, 5.2, 9.0)))
        up = [row for row in rows(loop, "transfers") if row["direction"] == "up"]
        assert [row["queued_s"] for row in up] == pytest.approx([5.0, 5.2, 9.0])
        assert [row["start_s"] for row in up] == pytest.approx([5.0, 6.0, 9.0])
        assert [row["arrive_s"] for row in up] == pytest.approx([6.5, 7.5, 10.5])
        assert [row["sequence"] for row in up] == [1, 2, 3]

    def test_messages_are_numbered_by_direction(self):
        _, loop = run(Scripted(uploads(5.0, 5.2, 9.0)))
        down = [row["sequence"] for row in rows(loop, "transfers") if row["direction"] == "down"]
        assert down == [1, 2, 3]


class TestPlans:
    @pytest.mark.parametrize(("send_s", "sent"), [(29.999, 1), (30.0, 0), (31.0, 0)])
    def test_nothing_is_sent_that_would_leave_after_the_end(self, send_s, sent):
        session, loop = run(Scripted(uploads(send_s)))
        assert len(session.of("upload")) == sent
        assert len([row for row in rows(loop, "transfers") if row["direction"] == "up"]) == sent

    def test_next_s_says_when_to_plan_again(self):
        streaming = Scripted((*uploads(4.0, next_s=7.0), *uploads(9.0)))
        session, _ = run(streaming)
        assert [now_s for now_s, _ in streaming.seen] == [0, 7.0, 9.0]
        assert [note.now_s for note in session.of("upload")] == [0, 7.0]

    def test_a_plan_without_frames_sends_nothing_and_goes_on(self):
        session, loop = run(Scripted((Sampling((), send_s=3.0), *uploads(5.0))))
        assert len(session.of("upload")) == 1
        assert rows(loop, "transfers")[0]["queued_s"] == 5.0

    def test_the_device_plans_by_the_last_answer_that_has_reached_it(self):
        """The first answer is ready at 9.5 s and arrives at 10.2 s; the state counts 11 per answer."""
        streaming = Scripted(uploads(5.0, 9.8, 10.3))
        run(streaming, duration_s=12.0)
        assert streaming.seen == [(0, 0), (5.0, 0), (9.8, 0), (10.3, 11)]

    @pytest.mark.parametrize("plan", [(5.0, 4.0), (0.0, 0.0), (0.0, None), (-1.0, 3.0)])
    def test_a_plan_that_would_never_end_is_refused(self, plan):
        class Stuck(Scripted):
            def plan_uplink(self, state, session, now_s, seen):
                return Sampling((0.0,), *plan)

        with pytest.raises(RunError, match=r"planned at 0 s .* would never end \(device=device-0\)"):
            run(Stuck())

    def test_a_member_that_sends_nothing_needs_no_server(self):
        session, loop = run(Member("streaming", "local").make(), adaptation=Member("adaptation", "frozen"))
        assert {note.verb for note in session.notes} == {"capture", "watch", "finish"}
        assert "learner" not in {node.kind for _, node, _ in session.placed}
        assert rows(loop, "transfers") == rows(loop, "updates") == []

    def test_the_trainer_is_placed_once(self):
        session, _ = run(Scripted(uploads(5.0, 12.0, 20.0)))
        assert [node.kind for _, node, _ in session.placed].count("learner") == 1


class TestSwitching:
    def test_an_application_hears_of_another_network_alone_also_after_it_waited(self):
        chosen = iter([0, 0, None, 0, 1, 1])
        answers = (Allocation((Grant(0.0 if one is None else 1.0, variant=one),)) for one in chosen)
        scheduling = Given(SimpleNamespace(allocate=lambda window: next(answers), wants=EACH_WINDOW))
        session = FakeSession(switch=lambda node, variant: variant)
        family = BuiltNetwork("tiny", 2 * single_profile(COST), "digest", "the family's weights")
        _, loop = run(Scripted(), scheduling=scheduling, session=session, duration_s=60.0, student=family)
        assert [(note.now_s, note.facts) for note in session.of("switch")] == [(0.0, 0), (40.0, 1)]
        assert [row["paged_in_bytes"] for row in rows(loop, "shares")] == [40, 0, 0, 40, 40, 0]


def away(gone_s: float, back_s: float) -> tuple[Event, ...]:
    """The application is there from the start, and between two times it is not."""
    app = App("segmentation")
    return Event(0.0, "start", app), Event(gone_s, "stop", app), Event(back_s, "start", app)


class TestLeaving:
    """Windows begin at 0, 10, 20 and 30 s; who is away from 10 to 25 s has no part in the second and the third."""

    def test_an_update_that_is_under_way_is_not_applied(self):
        """It leaves the server at 9.5 s and arrives at 10.2 s."""
        streaming = Scripted(uploads(5.0, 11.0, 28.0))
        session, loop = run(streaming, duration_s=40.0, events=away(10.0, 25.0))
        first, second = rows(loop, "updates")
        assert (first["reason"], first["accepted"], first["version"]) == ("its application had gone", None, None)
        assert [row["refused"] for row in rows(loop, "transfers")] == [None, first["reason"], None, None]
        assert [note.now_s for note in session.of("apply")] == [second["arrive_s"]] == pytest.approx([33.2])
        assert streaming.seen == [(0, 0), (5.0, 0), (11.0, 0), (28.0, 0)]  # nor did the device hear of the answer
        assert rows(loop, "runs")[0]["updates"] == 1

    def test_no_row_of_it_appears_until_it_is_back(self):
        """Uniform shares the device out as soon as somebody comes or goes, also between two windows."""
        session, loop = run(Scripted(uploads(5.0, 12.0)), duration_s=40.0, events=away(10.0, 25.0))
        shares = [(row["time_s"], row["window_s"]) for row in rows(loop, "shares")]
        assert shares == [(0.0, 10.0), (25.0, 5.0), (30.0, 10.0)]
        assert [note.args for note in session.of("capture")] == [(0, 10), (25, 30), (30, 40)]
        assert [note.now_s for note in session.of("watch")] == [10, 30, 40]
        assert [row["queued_s"] for row in rows(loop, "transfers")] == pytest.approx([5.0, 9.5])

    def test_a_scheduler_that_is_asked_window_by_window_shares_out_at_the_next_one(self):
        scheduling = Given(SimpleNamespace(allocate=uniform.Uniform().allocate, wants=EACH_WINDOW))
        session, loop = run(Scripted(), duration_s=40.0, events=away(10.0, 25.0), scheduling=scheduling)
        assert [row["time_s"] for row in rows(loop, "shares")] == [0.0, 30.0]
        assert [note.args for note in session.of("capture")] == [(0, 10), (30, 40)]

    @pytest.mark.parametrize("arrives", [True, False])
    def test_neither_plans_nor_labels_are_taken(self, arrives):
        """They leave the server at 8.5 s."""
        events = away(9.5 if arrives else 9.0, 25.0)
        streaming, session = Scripted(uploads(5.0, 26.0), phase=None), tracking()
        _, loop = run(streaming, events=events)
        assert streaming.seen[-1] == (26.0, int(arrives))
        refused = None if arrives else "its application had gone"
        assert rows(loop, "transfers")[1]["refused"] == refused
        _, loop = run(Labels(uploads(5.0)), session=session, adaptation=Member("adaptation", "frozen"), events=events)
        assert rows(loop, "transfers")[1]["refused"] == refused
        assert len(session.of("track")) == arrives

    def test_it_asks_for_weights_when_it_is_back_and_not_before(self):
        """The update that arrives at 7.2 s is torn; every weight would arrive at 8.616 s."""
        answers = iter([Receipt(0, accepted=False, reason="torn"), Receipt(2, accepted=True)])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(answers))
        _, loop = run(Scripted(uploads(2.0)), session=session, events=away(8.0, 20.0))
        torn, missed, taken = rows(loop, "updates")
        assert (torn["reason"], missed["reason"], taken["reason"]) == ("torn", "its application had gone", None)
        first, again = (row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync")
        assert first == pytest.approx(7.2)
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
        scheduling = Given(SimpleNamespace(allocate=allocate, wants=EACH_WINDOW))
        events, given = away(12.0, back_s), {"scheduling": scheduling, "session": session, "student": family}
        _, loop = run(Scripted(), duration_s=50.0, events=events, **given)
        back = 20.0 if back_s < 20 else 30.0
        assert asked == [(0.0, None), (10.0, 0), (back, None), *((at, 1) for at in np.arange(back + 10, 50, 10))]
        moved = [(row["time_s"], row["paged_in_bytes"], row["paged_out_bytes"]) for row in rows(loop, "shares")]
        assert moved[:3] == [(0.0, 40, 0), (10.0, 40, 40), (back, 40, 0)]
        assert [(note.now_s, note.facts) for note in session.of("switch")] == [(0.0, 0), (10.0, 1)]


class TestTraining:
    def test_a_free_member_takes_no_time(self):
        plans = (*uploads(0.0, next_s=10.0), *uploads(10.0, next_s=20.0))
        _, loop = run(Scripted(plans, free=True), devices=2)
        for row in rows(loop, "transfers"):
            assert row["arrive_s"] == row["queued_s"]
        assert [row["arrive_s"] for row in rows(loop, "updates")] == [0, 0, 10, 10]

    def test_where_a_score_ends_training_its_length_is_known_only_afterwards(self):
        session = FakeSession(train=lambda node, answer: trained(iterations=7, work=Passes((5,) * 8, (5,) * 7)))
        _, loop = run(Scripted(uploads(5.0), phase=Phase(50, stop_score=0.8)), session=session)
        (update,) = rows(loop, "updates")
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(7 * STEP_S)

    def test_where_a_score_ends_training_a_step_takes_all_frames(self):
        work = Passes((5,) * 8, (5,) * 7)  # one look more than steps
        session = FakeSession(train=lambda node, answer: replace(trained(iterations=7), frames=5, work=work))
        _, loop = run(Scripted(uploads(5.0), phase=Phase(50, stop_score=0.8)), session=session, step_s=None)
        (update,) = rows(loop, "updates")
        wanted_s = (8 + 7 * 2) * inference_s(COST, hardware.find("server-v100"), batch=5)
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(wanted_s)

    def test_a_phase_without_length_takes_the_adaptation_s_own(self):
        distill = Member("adaptation", "distill", (("iterations", 30),))
        _, loop = run(Scripted(uploads(5.0), phase=Phase()), adaptation=distill)
        (update,) = rows(loop, "updates")
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(30 * STEP_S)

    def test_where_no_step_s_is_given_time_follows_from_the_mini_batch(self):
        distill = Member("adaptation", "distill", (("batch", 3),))
        _, loop = run(Scripted(uploads(5.0)), adaptation=distill, step_s=None)
        (update,) = rows(loop, "updates")
        wanted_s = 50 * 3 * inference_s(COST, hardware.find("server-v100"), batch=3)
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(wanted_s)

    def test_an_update_that_arrives_after_the_end_has_a_row_and_is_not_applied(self):
        session, loop = run(Scripted(uploads(24.9)))
        (update,), down = rows(loop, "updates"), rows(loop, "transfers")[1]
        assert (down["arrive_s"], down["refused"]) == (pytest.approx(30.1), "it did not arrive in the session")
        assert (update["reason"], update["accepted"], update["arrive_s"]) == (down["refused"], None, None)
        assert not session.of("apply")

    def test_rows_have_the_plans_in_force_and_what_packing_took(self):
        class Planned(Scripted):
            def plan_downlink(self, state, session, stored, now_s):
                return DownlinkPlan(state, PHASE, rate_fps=0.7, interval_s=12.0)

        session = FakeSession(train=lambda node, answer: trained(clamped=3))
        _, loop = run(Planned(uploads(5.0, rate_fps=0.5)), session=session)
        (update,), (up, down) = rows(loop, "updates"), rows(loop, "transfers")
        assert (update["rate_fps"], update["interval_s"], update["clamped"]) == (0.7, 12.0, 3)
        assert (up["samples"], up["rate_fps"], up["gross_bytes"], up["host_pack_seconds"]) == (
            10,
            0.5,
            UP_BYTES + 700,
            0.25,
        )
        assert "samples" not in down

    def test_samples_are_filed_under_the_time_of_their_receipt_where_that_is_asked_for(self):
        session, _ = run(Scripted(uploads(5.0, stamp="receipt")))
        assert [note.args[2] for note in session.of("store")] == pytest.approx([6.5])

    def test_an_upload_that_is_only_stored_brings_a_plan_back(self):
        session, loop = run(Scripted(uploads(5.0), phase=None))
        (update,), down = rows(loop, "updates"), rows(loop, "transfers")[1]
        assert not session.of("train")
        assert (update["reason"], update["version"], update["iterations"]) == ("stored", None, 0)
        assert update["train_start_s"] is update["train_end_s"] is update["arrive_s"] is None
        assert (down["kind"], down["bytes"], down["queued_s"]) == ("plan", PLAN_BYTES, pytest.approx(8.5))

    def test_a_phase_that_learned_nothing_sends_no_update(self):
        session = FakeSession(train=lambda node, answer: trained(iterations=0, bytes=0, values=0, skipped="no label"))
        session, loop = run(Scripted(uploads(5.0)), session=session)
        (update,) = rows(loop, "updates")
        assert not session.of("apply")
        assert (update["reason"], update["version"], update["bytes"]) == ("no label", None, 0)
        assert rows(loop, "runs")[0]["updates"] == 0

    def test_nothing_to_learn_from_takes_no_time_on_the_gpu(self):
        """The horizon is empty, or no label in it counts: the next device need not wait for a phase that is none."""
        blind = FakeSession(store=lambda node, frames, labels, stamp_s: stored(frames.facts, usable_s=None))
        session, loop = run(Scripted(uploads(5.0)), devices=2, session=blind)
        first, second = rows(loop, "updates")
        assert not session.of("train")
        assert second["teach_start_s"] == first["teach_end_s"] == pytest.approx(8.5)
        assert first["train_start_s"] is first["train_end_s"] is None
        assert "no sample within the horizon" in first["reason"]

    @pytest.mark.parametrize(("oldest_s", "trains"), [(4.5, True), (4.6, False)])
    def test_only_what_the_horizon_still_holds_can_be_learned(self, oldest_s, trains):
        class Forgetful(Scripted):
            def plan_downlink(self, state, session, stored, now_s):
                return DownlinkPlan(state, PHASE, oldest_s=oldest_s)

        assert bool(run(Forgetful(uploads(5.0)))[0].of("train")) == trains


class TestLateServers:
    """Uploads leave at 5, 6 and 7 s and arrive at 6.5, 7.5 and 8.5 s; the first visit lasts from 6.5 to 9.5 s."""

    def test_one_visit_takes_all_that_waits_and_trains_once(self):
        session, loop = run(Scripted(uploads(5.0, 6.0, 7.0)))
        first, second = rows(loop, "updates")
        assert (first["uploads"], first["samples"]) == (1, 10)
        assert (second["uploads"], second["samples"]) == (2, 20)
        wanted = [9.5, 13.5, 13.5, 14.5]
        assert times(second, "teach_start_s", "teach_end_s", "train_start_s", "train_end_s") == pytest.approx(wanted)
        assert len(session.of("label")) == len(session.of("store")) == 3
        assert len(session.of("train")) == 2

    def test_what_was_stored_together_is_told_together(self):
        told = []

        class Curious(Scripted):
            def plan_downlink(self, state, session, stored, now_s):
                told.append((stored.frames, stored.unknown, stored.buffered, stored.phis))
                return DownlinkPlan(state, PHASE)

        run(Curious(uploads(5.0, 6.0, 7.0)))
        assert told == [(10, 2, 40, (0.1, 0.3)), (20, 4, 40, (0.1, 0.3, 0.1, 0.3))]

    def test_what_arrives_during_a_visit_waits_for_the_next(self):
        _, loop = run(Scripted(uploads(5.0, 6.0, 7.0, 12.0)))
        assert [row["uploads"] for row in rows(loop, "updates")] == [1, 2, 1]

    def test_what_arrives_while_the_gpu_is_busy_with_others_goes_along(self):
        """The second device's first upload waits until 9.5 s, and takes along what arrived until then."""
        _, loop = run(Scripted(uploads(5.0, 6.0)), devices=2)
        served = [(row["device"], row["uploads"], row["teach_start_s"]) for row in rows(loop, "updates")]
        assert served == [
            ("device-0", 1, pytest.approx(6.5)),
            ("device-1", 2, pytest.approx(9.5)),
            ("device-0", 1, pytest.approx(14.5)),
        ]

    def test_all_labels_that_waited_go_back(self):
        session = tracking()
        session, loop = run(Labels(uploads(5.0, 6.0, 7.0)), session=session, adaptation=Member("adaptation", "frozen"))
        down = [row["queued_s"] for row in rows(loop, "transfers") if row["direction"] == "down"]
        assert down == pytest.approx([8.5, 12.5, 12.5])
        assert len(session.of("track")) == 3

    def test_what_arrives_after_the_end_is_not_served(self):
        session, loop = run(Scripted(uploads(5.0, 29.0)))
        assert len(session.of("label")) == len(rows(loop, "updates")) == 1
        late = rows(loop, "transfers")[-1]
        assert (late["arrive_s"], late["refused"]) == (pytest.approx(30.5), "it did not arrive in the session")


class TestRefusals:
    """An upload at 2 s makes an update that arrives at 7.2 s and is refused; asking takes 0.516 s on the uplink."""

    def ran(self, *answers: Receipt, send_s: tuple[float, ...] = (2.0,), **script: Any):
        given = iter(answers)
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(given), **script)
        return run(Scripted(uploads(*send_s)), session=session)

    def test_a_refusal_says_why_and_costs_a_request_and_every_weight(self):
        session, loop = self.ran(Receipt(0, accepted=False, reason="torn"), Receipt(2, accepted=True))
        sent = [(row["direction"], row["kind"], row["bytes"], row["refused"]) for row in rows(loop, "transfers")]
        assert sent == [
            ("up", "samples", UP_BYTES, None),
            ("down", "update", DOWN_BYTES, "torn"),
            ("up", "resync", RESYNC_BYTES, None),
            ("down", "update", RESENT_BYTES, None),
        ]
        assert [note.now_s for note in session.of("resend")] == pytest.approx([7.2 + 0.516])
        assert session.of("apply")[1].args[0] is session.of("resend")[0]
        refused, resent = rows(loop, "updates")
        assert (refused["accepted"], refused["reason"], refused["version"]) == (False, "torn", None)
        assert (resent["accepted"], resent["reason"], resent["version"]) == (True, None, 2)
        assert (resent["uploads"], resent["samples"], resent["teach_start_s"]) == (0, 0, None)
        (whole,) = rows(loop, "runs")
        assert whole["updates"] == 1
        assert whole["uplink_bytes"] == UP_BYTES + RESYNC_BYTES

    def test_it_asks_again_until_the_weights_have_come(self):
        torn = Receipt(0, accepted=False, reason="torn")
        _, loop = self.ran(torn, torn, torn, Receipt(4, accepted=True))
        asked = [row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert np.diff(asked) == pytest.approx([0.516 + 0.9 + RETRY_S] * 2)
        assert [row["version"] for row in rows(loop, "updates")] == [None, None, None, 4]

    def test_it_asks_once_for_two_refusals(self):
        """A second update was on its way when the first was refused."""
        torn, stale = (Receipt(0, accepted=False, reason=reason) for reason in ("torn", "out of order"))
        session, loop = self.ran(torn, stale, Receipt(3, accepted=True), send_s=(2.0, 3.0))
        kinds = [row["kind"] for row in rows(loop, "transfers")]
        assert kinds.count("resync") == len(session.of("resend")) == 1

    def test_every_weight_comes_even_if_the_next_phase_has_nothing_to_learn_from(self):
        usable = iter([3.0, None])
        session, loop = self.ran(
            Receipt(0, accepted=False, reason="torn"),
            Receipt(2, accepted=True),
            send_s=(2.0, 6.2),
            store=lambda node, frames, labels, stamp_s: stored(frames.facts, usable_s=next(usable)),
        )
        assert [row["reason"] and row["reason"][:4] for row in rows(loop, "updates")] == ["torn", "no s", None]
        assert len(session.of("resend")) == 1

    def test_a_device_that_refused_an_update_did_not_hear_of_its_plan(self):
        """The state counts 11 per answer; what comes with every weight is what the server has by then."""
        given = iter([Receipt(0, accepted=False, reason="torn"), *[Receipt(2, accepted=True)] * 3])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(given))
        streaming = Scripted(uploads(2.0, 7.5, 12.0))
        run(streaming, session=session, duration_s=13.0)
        assert streaming.seen == [(0, 0), (2.0, 0), (7.5, 0), (12.0, 11)]

    def test_nothing_is_asked_for_after_the_end(self):
        torn = Receipt(0, accepted=False, reason="torn")
        _, loop = self.ran(*[torn] * 30)
        asked = [row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert 5 < len(asked) < 20
        assert max(asked) < 30.0


class TestDamagedMessages:
    """The messages of one direction that are named by their number arrive damaged; `apply` does not look at them."""

    def ran(self, monkeypatch, up: tuple[int, ...] = (), down: tuple[int, ...] = (), **given: Any):
        count, torn = {"up": 0, "down": 0}, {"up": up, "down": down}

        def draw(direction: str, share: float) -> Damage | None:
            count[direction] += 1
            return Damage("cut", 0) if count[direction] in torn[direction] else None

        def rng_for(seed: int, purpose: str, device: str, way: str) -> Any:
            return way if purpose == "damage" else np.random.default_rng(0)

        monkeypatch.setattr("driftlab.platform.loop.app_run.damage.draw", draw)
        monkeypatch.setattr("driftlab.platform.loop.loop.rng_for", rng_for)
        return run(**given)

    def test_torn_samples_are_not_served_and_a_row_says_so(self, monkeypatch):
        session, loop = self.ran(monkeypatch, up=(1,), streaming=Scripted(uploads(2.0, 12.0)))
        assert [row["refused"] for row in rows(loop, "transfers") if row["direction"] == "up"] == ["torn", None]
        assert len(session.of("label")) == len(rows(loop, "updates")) == 1

    def test_a_plan_that_is_torn_is_not_heard_of(self, monkeypatch):
        streaming = Scripted(uploads(2.0, 12.0, 20.0), phase=None)
        _, loop = self.ran(monkeypatch, down=(1,), streaming=streaming)
        assert streaming.seen == [(0, 0), (2.0, 0), (12.0, 0), (20.0, 2)]
        assert [row["refused"] for row in rows(loop, "transfers") if row["kind"] == "plan"] == ["torn", None, None]

    def test_a_request_that_is_torn_is_not_answered_and_made_again(self, monkeypatch):
        answers = iter([Receipt(0, accepted=False, reason="torn"), Receipt(2, accepted=True)])
        session = FakeSession(apply=lambda node, update, arrive_s, damage: next(answers))
        session, loop = self.ran(monkeypatch, up=(2,), streaming=Scripted(uploads(2.0)), session=session)
        asked = [(row["queued_s"], row["refused"]) for row in rows(loop, "transfers") if row["kind"] == "resync"]
        assert asked == [(pytest.approx(7.2), "torn"), (pytest.approx(7.2 + 0.516 + RETRY_S), None)]
        assert len(session.of("resend")) == 1


class TestLabels:
    def test_labels_that_are_all_it_wants_come_back_without_a_trainer(self):
        session = tracking()
        session, loop = run(Labels(uploads(5.0)), session=session, adaptation=Member("adaptation", "frozen"))
        down = rows(loop, "transfers")[1]
        assert (down["kind"], down["queued_s"], down["arrive_s"]) == ("labels", pytest.approx(8.5), pytest.approx(9.2))
        (tracked,) = session.of("track")
        assert tracked.args == (session.of("pack")[0], 4.5, down["arrive_s"], None)
        assert "learner" not in {node.kind for _, node, _ in session.placed}
        assert rows(loop, "updates") == []
        (placed,) = (args[0] for _, node, args in session.placed if node.kind == "application")
        assert (placed.tracks, placed.chained) == (True, True)

    def test_labels_and_plans_that_arrive_after_the_end_are_not_taken(self):
        session, loop = run(Labels(uploads(26.0)), session=tracking(), adaptation=Member("adaptation", "frozen"))
        late = rows(loop, "transfers")[1]
        assert (late["arrive_s"], late["refused"]) == (pytest.approx(30.2), "it did not arrive in the session")
        assert not session.of("track")
        _, loop = run(Scripted(uploads(27.9), phase=None))
        late = rows(loop, "transfers")[1]
        assert late["kind"] == "plan"
        assert late["arrive_s"] > 30 and late["refused"] == "it did not arrive in the session"

    def test_labels_may_be_carried_straight_from_the_frame_they_tell_of(self):
        direct = Member("streaming", "remote_tracking", (("chained", False),)).make()
        session = tracking()
        session, _ = run(direct, session=session, adaptation=Member("adaptation", "frozen"), duration_s=3.0)
        assert not next(args[0] for _, node, args in session.placed if node.kind == "application").chained


class TestWatching:
    def test_windows_cover_the_stream_once(self):
        session, _ = run(Scripted(), duration_s=25.0)
        assert [note.args for note in session.of("capture")] == [(0, 10), (10, 20), (20, 25)]
        assert [note.now_s for note in session.of("capture")] == [0, 10, 20]
        assert sum(session.advances) == 25.0

    def test_a_window_is_watched_when_it_is_over_and_asked_for_one_window_late(self):
        session, _ = run(Scripted(), duration_s=30.0)
        assert [note.now_s for note in session.of("watch")] == [10, 20, 30]
        assert [note.asked_s for note in session.of("watch")] == [[20], [30], [30]]

    def test_a_window_without_frames_is_not_watched(self):
        session = FakeSession(capture=lambda node, start_s, stop_s: Captured(int(start_s != 10), has_truth=True))
        session, loop = run(Scripted(), session=session)
        assert [note.now_s for note in session.of("watch")] == [10, 30]
        assert rows(loop, "runs")[0]["frames"] == 2

    def test_truth_is_taken_from_the_stream_where_it_is(self):
        session, _ = run(Scripted())
        assert [note.args[1] for note in session.of("watch")] == [None] * 3
        assert not session.of("label")

    def test_a_stream_without_truth_asks_the_teacher(self):
        session = FakeSession(capture=lambda node, start_s, stop_s: Captured(5, has_truth=False))
        session, _ = run(Scripted(), session=session)
        asked = session.of("label")
        assert [note.args for note in asked] == [(captured,) for captured in session.of("capture")]
        assert [note.args[1] for note in session.of("watch")] == asked

    def test_the_whole_machine_goes_to_the_only_application(self):
        session, _ = run(Scripted())
        assert [note.args[3:] for note in session.of("watch")] == [(((at, 1.0),),) for at in (0.0, 10.0, 20.0)]

    def test_rows_of_the_nodes_come_in_the_order_of_windows(self):
        _, loop = run(Scripted(), devices=2)
        frames = [(row["device"], row["frame"]) for row in rows(loop, "frames")]
        assert len(frames) == 6
        for device in ("device-0", "device-1"):
            numbers = [number for name, number in frames if name == device]
            assert numbers == sorted(numbers)


class TestSums:
    def test_a_run_sums_its_devices(self):
        _, loop = run(Scripted(uploads(5.0)), devices=2)
        (whole,), devices = rows(loop, "runs"), rows(loop, "devices")
        assert [row["device"] for row in devices] == ["device-0", "device-1"]
        assert whole["frames"] == sum(row["frames"] for row in devices) == 2 * 60
        assert (whole["score"], whole["score_frame"], whole["score_global"]) == (0.25, 0.5, 1.0)
        assert whole["uplink_bytes"] == 2 * UP_BYTES
        assert whole["downlink_bytes"] == 2 * DOWN_BYTES
        assert whole["uplink_kbps"] == pytest.approx(UP_BYTES * 8 / 1000 / 30)
        assert whole["updates"] == 2
        assert whole["answering_j"] == pytest.approx(2 * 60 * 0.1)

    def test_nothing_scored_is_nothing_measured(self):
        def unscored(*args):
            return replace(watched(*args), scored=0, counts=None)

        def finish(node):
            return Finished("", replace(shown(0), counts=None))

        _, loop = run(Scripted(), session=FakeSession(watch=unscored, finish=finish))
        (whole,) = rows(loop, "runs")
        assert whole["score"] is whole["score_frame"] is whole["score_global"] is None

    def test_the_digest_tells_other_final_weights(self):
        digests = {rows(run(Scripted(), devices=n)[1], "runs")[0]["weights_digest"] for n in (1, 2)}
        assert len(digests) == 2


class TestPlacing:
    def specs(self, adaptation: Member) -> dict[str, Any]:
        session, _ = run(Scripted(uploads(5.0)), adaptation=adaptation)
        return {node.kind: args for _, node, args in session.placed}

    def test_who_learns_from_labels_learns_at_the_server_alone(self):
        distill = Member("adaptation", "distill")
        placed = self.specs(distill)
        assert placed["application"][0].student.adaptation == Member("adaptation", "frozen")
        assert placed["learner"][0].adaptation == distill
        assert placed["application"][1] == placed["learner"][1] == "the student's weights"

    def test_who_needs_no_labels_follows_on_the_device(self):
        assert self.specs(Member("adaptation", "frozen"))["application"][0].student.adaptation.name == "frozen"

    def test_a_network_s_weights_go_to_the_teacher(self):
        teacher = BuiltNetwork("teacher", single_profile(COST), "digest", "the teacher's weights")
        session, _ = run(Scripted(), teacher=teacher, teacher_spec=TeacherSpec(kind="network"))
        assert session.placed[0][2] == (TeacherSpec(kind="network"), "the teacher's weights")

    @pytest.mark.parametrize("pictures", [0, 1, 3])
    def test_pictures_are_spread_over_the_first_device_on_frames_that_exist(self, pictures):
        session, _ = run(Scripted(), devices=2, pictures=pictures)
        first, second = (args[0].picture_times_s for _, node, args in session.placed if node.kind == "application")
        assert second == ()
        assert first == {0: (), 1: (15.0,), 3: (5.0, 15.0, 25.0)}[pictures]


def test_two_runs_are_the_same_and_another_seed_loses_other_packets():
    def sent(seed: int) -> list[dict[str, Any]]:
        lossy = replace(WIRE, loss=0.5, up_kbps=800)
        session = FakeSession(upload=lambda node, plan: uploaded(10, 0.0, size=60_000))
        streams = (StreamSpec("streets/running", 1, 32, 48, FPS, 30.0),)
        system = System("scripted", "", Given(Scripted(uploads(5.0))), Member("adaptation", "distill"))
        cell = Cell(
            "a",
            system,
            "w",
            "f",
            (DeviceSpec("d", hardware.find("laptop"), lossy, (AppSpec(App("segmentation"), streams[0]),)),),
            seed,
            30.0,
        )
        student = BuiltNetwork("tiny", single_profile(COST), "", "w")
        server = Site(hardware.find("server-v100"), 0.1, 0.1)
        needs = AppContext(student, None, TeacherSpec(), 0.1, 8)
        setting = CellContext("e", "virtual", 10.0, 0, {"segmentation": needs}, server)
        session.loop = Loop(cell, setting, session)
        session.loop.run()
        return rows(session.loop, "transfers")

    assert sent(0) == sent(0)
    assert sent(0)[0]["wire_bytes"] != sent(1)[0]["wire_bytes"]


def test_a_wall_clock_gives_the_same_rows():
    def ran(clock: str) -> list[Any]:
        _, loop = run(Scripted(uploads(0.1)), duration_s=0.2, clock=clock, window_s=0.1, label_s=0.001, step_s=1e-4)
        return [rows(loop, table) for table in ("transfers", "updates", "devices", "runs")]

    assert ran("wall") == ran("virtual")
