"""The loop on a session that records calls: a few lines of arithmetic give every time in the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from loop_factory import (
    COST,
    DOWN_BYTES,
    FPS,
    PHASE,
    STEP_S,
    UP_BYTES,
    WIRE,
    FakeSession,
    FixedMember,
    ScriptedStreaming,
    about,
    rows,
    run,
    stored,
    times,
    trained,
    uploaded,
    uploads,
)

from driftlab.errors import RunError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.setting import (
    AppNetworks,
    AppSpec,
    BuiltNetwork,
    Cell,
    Device,
    StreamSpec,
    TeacherSpec,
    TrainingSite,
    WorkloadSetup,
)
from driftlab.platform.streaming.base import PLAN_BYTES, DownlinkPlan, Sampling
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import AppGoals
from driftlab.platform.world.cost import inference_s


@pytest.fixture(scope="module")
def ran():
    return run(ScriptedStreaming(uploads(5.0)))


class TestOneUpload:
    """10 frames leave at 5 s: 1 s transfer, 0.5 s delay, 2 s teacher, 1 s training, and back."""

    def test_the_uplink_takes_its_bytes_and_half_a_round_trip(self, ran):
        up = rows(ran[1], "transfers")[0]
        assert (up["direction"], up["kind"], up["bytes"], up["sequence"]) == ("up", "samples", UP_BYTES, 1)
        assert times(up, "queued_s", "start_s", "sent_s", "arrive_s") == about([5.0, 5.0, 6.0, 6.5])

    def test_the_server_labels_then_trains(self, ran):
        (update,) = rows(ran[1], "updates")
        wanted = [6.5, 8.5, 8.5, 9.5]
        assert times(update, "label_start_s", "label_end_s", "train_start_s", "train_end_s") == about(wanted)

    def test_the_update_arrives_after_its_bytes_and_half_a_round_trip(self, ran):
        down = rows(ran[1], "transfers")[1]
        assert (down["direction"], down["kind"], down["bytes"], down["sequence"]) == ("down", "update", DOWN_BYTES, 1)
        assert times(down, "queued_s", "start_s", "sent_s", "arrive_s") == about([9.5, 9.5, 9.7, 10.2])
        (applied,) = ran[0].of("apply")
        patching_s = (2 * COST.weight_bytes + DOWN_BYTES) / hardware.find("phone-hi").bytes_per_s
        assert applied.args == (ran[0].of("train")[0], applied.now_s, None)
        assert applied.now_s == pytest.approx(down["arrive_s"] + patching_s, abs=1e-12)
        assert down["arrive_s"] == rows(ran[1], "updates")[0]["arrive_s"]

    def test_the_row_has_the_facts_of_the_update(self, ran):
        (update,) = rows(ran[1], "updates")
        wanted = {
            "version": 1,
            "samples": 10,
            "unlisted_labels": 2,
            "buffered": 40,
            "iterations": 50,
            "values": 500,
            "bytes": DOWN_BYTES,
        }
        assert {name: update[name] for name in wanted} == wanted
        assert update["phi"] == pytest.approx(0.2)
        assert (update["accepted"], update["reason"]) == (True, None)

    def test_calls_are_in_the_order_of_virtual_time(self, ran):
        notes = [(note.now_s, note.verb) for note in ran[0].notes if note.verb not in ("capture", "finish")]
        assert notes == sorted(notes, key=lambda note: note[0])
        learning = ["receive", "sample_with_truth", "label", "store", "drop_samples_before", "train"]
        assert [verb for _, verb in notes] == ["upload", *learning, "run_stream", "apply", "run_stream", "run_stream"]
        assert [now_s for now_s, _ in notes] == about([0, *[6.5] * 4, 8.5, 8.5, 10, 10.2, 20, 30])

    def test_work_starts_when_its_virtual_start_comes_and_is_waited_for_at_its_end(self, ran):
        store, train = ran[0].of("store")[0], ran[0].of("train")[0]
        assert (store.now_s, store.asked_s) == (about(6.5), about([8.5]))
        assert (train.now_s, train.asked_s) == (about(8.5), about([9.5]))

    def test_payloads_go_from_job_to_job(self, ran):
        verbs = ("upload", "receive", "sample_with_truth", "label", "store")
        (upload,), (receive,), (reveal,), (label,), (store,) = (ran[0].of(verb) for verb in verbs)
        (sampling,) = upload.args
        assert receive.args == (upload, sampling, (32, 48), None)
        assert (reveal.node.kind, reveal.args) == ("device", (sampling.times_s,))
        assert label.args == (reveal,)
        assert store.args == (receive, label, None)
        assert [note.args[0] for note in ran[0].of("run_stream")] == ran[0].of("capture")

    def test_the_trainer_is_placed_when_the_first_samples_arrive(self, ran):
        placed = {node.kind: now_s for now_s, node, _ in ran[0].placed}
        assert placed == {"teacher": 0, "device": 0, "application": 0, "learner": about(6.5)}


class TestQueues:
    def test_the_gpu_serves_in_the_order_of_arrival(self):
        _, loop = run(ScriptedStreaming(uploads(5.0)), devices=3)
        served = [(row["device"], row["label_start_s"], row["train_end_s"]) for row in rows(loop, "updates")]
        assert served == [
            ("device-0", about(6.5), about(9.5)),
            ("device-1", about(9.5), about(12.5)),
            ("device-2", about(12.5), about(15.5)),
        ]

    def test_one_device_is_served_one_upload_at_a_time_with_any_number_of_gpus(self):
        """Two phases on one copy of a model at once would send updates that build on each other out of order."""
        _, loop = run(ScriptedStreaming(uploads(5.0, 6.0)), gpus=2)
        assert [row["label_start_s"] for row in rows(loop, "updates")] == about([6.5, 9.5])

    def test_a_link_transfers_messages_in_sequence(self):
        _, loop = run(ScriptedStreaming(uploads(5.0, 5.2, 9.0)))
        up = [row for row in rows(loop, "transfers") if row["direction"] == "up"]
        assert [row["queued_s"] for row in up] == about([5.0, 5.2, 9.0])
        assert [row["start_s"] for row in up] == about([5.0, 6.0, 9.0])
        assert [row["arrive_s"] for row in up] == about([6.5, 7.5, 10.5])
        assert [row["sequence"] for row in up] == [1, 2, 3]


@dataclass(frozen=True)
class RepeatedPlan(ScriptedStreaming):
    """A streaming member that always sends the same plan."""

    plan: Sampling | None = None

    def plan_uplink(self, state, session, now_s, seen):
        return self.plan


class TestPlans:
    @pytest.mark.parametrize(("send_s", "sent"), [(29.999, 1), (30.0, 0), (31.0, 0)])
    def test_no_upload_leaves_after_the_end(self, send_s, sent):
        session, loop = run(ScriptedStreaming(uploads(send_s)))
        assert len(session.of("upload")) == sent
        assert len([row for row in rows(loop, "transfers") if row["direction"] == "up"]) == sent

    def test_next_s_is_the_time_of_the_next_plan(self):
        streaming = ScriptedStreaming((*uploads(4.0, next_s=7.0), *uploads(9.0)))
        session, _ = run(streaming)
        assert [now_s for now_s, _ in streaming.seen] == [0, 7.0, 9.0]
        assert [note.now_s for note in session.of("upload")] == [0, 7.0]

    def test_a_plan_without_frames_sends_no_upload_and_continues(self):
        session, loop = run(ScriptedStreaming((Sampling((), send_s=3.0), *uploads(5.0))))
        assert len(session.of("upload")) == 1
        assert rows(loop, "transfers")[0]["queued_s"] == about(5.0)

    def test_the_device_plans_by_the_last_reply_that_has_arrived(self):
        """The first reply is ready at 9.5 s and arrives at 10.2 s; the state counts 11 per reply."""
        streaming = ScriptedStreaming(uploads(5.0, 9.8, 10.3))
        run(streaming, duration_s=12.0)
        assert streaming.seen == [(0, 0), (5.0, 0), (9.8, 0), (10.3, 11)]

    def test_a_rule_remembers_on_the_device_whatever_the_server_replies(self):
        class Counting(ScriptedStreaming):
            def plan_uplink(self, state, session, now_s, seen):
                plan = super().plan_uplink(state, session, now_s, seen)
                self.seen[-1] += (seen.state,)
                return plan and replace(plan, state=(seen.state or 0) + 1)

        streaming = Counting(uploads(5.0, 9.8, 10.3))
        session, _ = run(streaming, duration_s=12.0)
        assert streaming.seen == [(0, 0, None), (5.0, 0, 1), (9.8, 0, 2), (10.3, 11, 3)]
        assert {note.args[0].state for note in session.of("upload")} == {None}

    @pytest.mark.parametrize("plan", [(5.0, 4.0), (0.0, 0.0), (0.0, None), (1.0, math.inf), (1.0, math.nan)])
    def test_a_plan_that_would_never_end_is_refused(self, plan):
        with pytest.raises(RunError, match=r"\(device=device-0\) planned at 0 s .* would never end: next_s must"):
            run(RepeatedPlan(plan=Sampling((0.0,), *plan)))

    @pytest.mark.parametrize("send_s", [-1.0, math.nan, math.inf])
    def test_a_plan_that_sends_in_the_past_or_at_no_time_is_refused(self, send_s):
        with pytest.raises(RunError, match=rf"\(device=device-0\) planned at 0 s to send at {send_s:g} s: send_s must"):
            run(RepeatedPlan(plan=Sampling((0.0,), send_s)))

    @pytest.mark.parametrize("time_s", [5.5, -0.5, math.nan, math.inf])
    @pytest.mark.parametrize("free", [False, True])
    def test_a_plan_with_frames_after_it_is_sent_is_refused_even_if_its_member_claims_to_be_free(self, time_s, free):
        plan = Sampling((0.5, time_s), 5.0)
        with pytest.raises(
            RunError, match=rf"planned at 0 s to send the frame of {time_s:g} s at 5 s: times_s must be"
        ):
            run(RepeatedPlan(plan=plan, free=free))

    def test_the_plan_of_a_bound_may_have_later_frames(self):
        plan = Sampling((0.5, 5.5), 5.0, next_s=20.0)
        _, loop = run(ScriptedStreaming((plan,), free=True), bound="oracle")
        assert rows(loop, "transfers")[0]["queued_s"] == 5.0

    @pytest.mark.parametrize(
        ("name", "value"), [("oldest_s", math.nan), ("oldest_s", 1e3), ("rate_fps", math.nan), ("interval_s", -1.0)]
    )
    def test_a_plan_of_the_server_with_an_impossible_value_is_refused(self, name, value):
        class Impossible(ScriptedStreaming):
            def plan_downlink(self, state, session, stored, now_s):
                return DownlinkPlan(state, self.phase, **{name: value})

        with pytest.raises(RunError, match=rf"\(device=device-0\) planned at 8.5\d* s .*{value:g}.* must be"):
            run(Impossible(uploads(5.0)))

    def test_a_member_without_uploads_places_no_server(self):
        session, loop = run(Member("streaming", "local").make(), adaptation=Member("adaptation", "frozen"))
        assert {note.verb for note in session.notes} == {"capture", "run_stream", "finish"}
        assert "learner" not in {node.kind for _, node, _ in session.placed}
        assert rows(loop, "transfers") == rows(loop, "updates") == []


class TestTraining:
    def test_a_free_member_takes_no_time(self):
        plans = (*uploads(0.0, next_s=10.0), *uploads(10.0, next_s=20.0))
        _, loop = run(ScriptedStreaming(plans, free=True), devices=2, bound="oracle")
        for row in rows(loop, "transfers"):
            assert row["arrive_s"] == row["queued_s"]
        assert [row["arrive_s"] for row in rows(loop, "updates")] == [0, 0, 10, 10]

    def test_training_that_ends_at_a_score_has_a_length_only_afterwards(self):
        session = FakeSession(train=lambda node, plan: trained(iterations=7, passes=Passes((5,) * 8, (5,) * 7)))
        _, loop = run(ScriptedStreaming(uploads(5.0), phase=Phase(50, stop_score=0.8)), session=session)
        (update,) = rows(loop, "updates")
        look_s = inference_s(COST, hardware.find("server-v100"), batch=5)  # one more than steps
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(7 * STEP_S + look_s)

    def test_where_a_score_ends_training_a_step_takes_all_frames(self):
        work = Passes((5,) * 8, (5,) * 7)  # one look more than steps
        session = FakeSession(train=lambda node, plan: replace(trained(iterations=7), frames=5, passes=work))
        _, loop = run(ScriptedStreaming(uploads(5.0), phase=Phase(50, stop_score=0.8)), session=session, step_s=None)
        (update,) = rows(loop, "updates")
        wanted_s = (8 + 7 * 2) * inference_s(COST, hardware.find("server-v100"), batch=5)
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(wanted_s)

    def test_without_step_s_the_time_follows_from_the_mini_batch(self):
        distill = Member("adaptation", "distill", (("batch", 3),))
        _, loop = run(ScriptedStreaming(uploads(5.0)), adaptation=distill, step_s=None)
        (update,) = rows(loop, "updates")
        wanted_s = 50 * 3 * inference_s(COST, hardware.find("server-v100"), batch=3)
        assert update["train_end_s"] - update["train_start_s"] == pytest.approx(wanted_s)

    def test_an_update_that_arrives_after_the_end_has_a_row_and_is_not_applied(self):
        session, loop = run(ScriptedStreaming(uploads(24.9)))
        (update,), down = rows(loop, "updates"), rows(loop, "transfers")[1]
        assert (down["arrive_s"], down["refused"]) == (about(30.1), "it did not arrive in the session")
        assert (update["reason"], update["accepted"], update["arrive_s"]) == (down["refused"], None, None)
        assert not session.of("apply")

    def test_rows_have_the_plans_in_force_and_the_packing_time(self):
        class GivenRate(ScriptedStreaming):
            def plan_downlink(self, state, session, stored, now_s):
                return DownlinkPlan(state, PHASE, rate_fps=0.7, interval_s=12.0)

        session = FakeSession(train=lambda node, plan: trained(clamped=3))
        _, loop = run(GivenRate(uploads(5.0, rate_fps=0.5)), session=session)
        (update,), (up, down) = rows(loop, "updates"), rows(loop, "transfers")
        assert (update["rate_fps"], update["interval_s"], update["clamped"]) == (0.7, 12.0, 3)
        assert (up["samples"], up["rate_fps"], up["gross_bytes"], up["host_pack_seconds"]) == (
            10,
            0.5,
            UP_BYTES + 700,
            0.25,
        )
        assert "samples" not in down

    def test_samples_are_stored_under_the_time_of_their_receipt_if_configured(self):
        session, _ = run(ScriptedStreaming(uploads(5.0, stamp="receipt")))
        assert [note.args[2] for note in session.of("store")] == about([6.5])

    def test_a_stored_upload_without_training_returns_a_plan(self):
        session, loop = run(ScriptedStreaming(uploads(5.0), phase=None))
        (update,), down = rows(loop, "updates"), rows(loop, "transfers")[1]
        assert not session.of("train")
        assert (update["reason"], update["version"], update["iterations"]) == ("stored", None, 0)
        assert update["train_start_s"] is update["train_end_s"] is update["arrive_s"] is None
        assert (down["kind"], down["bytes"], down["queued_s"]) == ("plan", PLAN_BYTES, about(8.5))

    def test_a_phase_without_training_sends_no_update(self):
        session = FakeSession(train=lambda node, plan: trained(iterations=0, bytes=0, values=0, skipped="no label"))
        session, loop = run(ScriptedStreaming(uploads(5.0)), session=session)
        (update,) = rows(loop, "updates")
        assert not session.of("apply")
        assert (update["reason"], update["version"], update["bytes"]) == ("no label", None, 0)
        assert rows(loop, "runs")[0]["updates"] == 0

    def test_an_empty_phase_takes_no_time_on_the_gpu(self):
        """With no samples or no valid labels in the horizon, the next device does not wait for a phase."""
        blind = FakeSession(store=lambda node, frames, labels, stamp_s: stored(frames.facts, usable_s=None))
        session, loop = run(ScriptedStreaming(uploads(5.0)), devices=2, session=blind)
        first, second = rows(loop, "updates")
        assert not session.of("train")
        assert second["label_start_s"] == first["label_end_s"] == about(8.5)
        assert first["train_start_s"] is first["train_end_s"] is None
        assert "no sample within the horizon" in first["reason"]

    @pytest.mark.parametrize(("oldest_s", "trains"), [(4.5, True), (4.6, False)])
    def test_only_samples_within_the_horizon_are_trained_on(self, oldest_s, trains):
        class ShortHorizon(ScriptedStreaming):
            def plan_downlink(self, state, session, stored, now_s):
                return DownlinkPlan(state, PHASE, oldest_s=oldest_s)

        assert bool(run(ShortHorizon(uploads(5.0)))[0].of("train")) == trains


def test_two_runs_are_the_same_and_another_seed_loses_other_packets():
    def sent(seed: int) -> list[dict[str, Any]]:
        lossy = replace(WIRE, loss=0.5, up_kbps=800)
        session = FakeSession(upload=lambda node, plan: uploaded(10, 0.0, size=60_000))
        streams = (StreamSpec("streets/running", 1, 32, 48, FPS, 30.0),)
        system = System("scripted", "", FixedMember(ScriptedStreaming(uploads(5.0))), Member("adaptation", "distill"))
        cell = Cell(
            "a",
            system,
            "w",
            "f",
            (Device("d", hardware.find("laptop"), lossy, (AppSpec(AppGoals("segmentation"), streams[0]),)),),
            seed,
            30.0,
        )
        student = BuiltNetwork("tiny", single_profile(COST), "", "w")
        server = TrainingSite(hardware.find("server-v100"), 0.1, 0.1)
        needs = AppNetworks(student, None, TeacherSpec(), 0.1, 8)
        setting = WorkloadSetup("e", "virtual", 10.0, 0, {"segmentation": needs}, server)
        session.loop = Runner(cell, setting, session)
        session.loop.run()
        return rows(session.loop, "transfers")

    assert sent(0) == sent(0)
    assert sent(0)[0]["wire_bytes"] != sent(1)[0]["wire_bytes"]


def test_a_wall_clock_gives_the_same_rows():
    def ran(clock: str) -> list[Any]:
        _, loop = run(
            ScriptedStreaming(uploads(0.1)), duration_s=0.2, clock=clock, window_s=0.1, label_s=0.001, step_s=1e-4
        )
        return [rows(loop, table) for table in ("transfers", "updates", "devices", "runs")]

    assert ran("wall") == ran("virtual")
