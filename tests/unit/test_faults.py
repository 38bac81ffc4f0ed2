"""Garbage in messages and labels is refused by the real nodes and noted; the run continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_factory import check_shares, rows

from driftlab.datasets.frames import IGNORE
from driftlab.platform.adaptation import distill
from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.messages import TOO_LATE
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
from driftlab.platform.world import hardware
from driftlab.platform.world import link as damage
from driftlab.platform.world.apps import AppGoals
from driftlab.platform.world.link import LinkProfile, MessageDamage

HEIGHT, WIDTH, CLASSES, FPS, DURATION_S = 32, 48, 8, 2.0, 60.0
LINK = LinkProfile("test", up_kbps=1000, down_kbps=1000, rtt_ms=100)
AMS = Member("streaming", "ams", (("codec", "jpeg"), ("interval_s", 5.0)))
TRACKING = Member("streaming", "remote_tracking", (("every_s", 5.0),))
DISTILL = Member("adaptation", "distill", (("iterations", 2), ("batch", 1)))
FROZEN = Member("adaptation", "frozen")


class ChangedReplies(InlineSession):
    """Inline nodes whose replies a test can change."""

    def __init__(self, **hands: Any) -> None:
        super().__init__()
        self.hands = hands

    def call(self, node, verb, *args):
        job = super().call(node, verb, *args)
        return InlineJob(node, verb, self.hands[verb](job.reply)) if verb in self.hands else job


def run(
    streaming: Member = AMS, adaptation: Member = DISTILL, link: LinkProfile = LINK, **hands: Any
) -> tuple[Runner, ChangedReplies]:
    model = build("half", CLASSES, seed=0)
    student = BuiltNetwork(
        "half",
        single_profile(count_cost(model, HEIGHT, WIDTH)),
        "",
        InlineJob(None, "", Reply(payload=state_of(model))),
    )
    stream = StreamSpec("streets/running", 3, HEIGHT, WIDTH, FPS, DURATION_S)
    edge = Device("cam", hardware.find("laptop"), link, (AppSpec(AppGoals("segmentation"), stream),))
    cell = Cell("a", System("s", "", streaming, adaptation), "running", "one", (edge,), 0, DURATION_S)
    server = TrainingSite(hardware.find("server-v100"), 0.01, 0.01)
    needs = AppNetworks(student, None, TeacherSpec(), 0.01, CLASSES)
    setting = WorkloadSetup("e", "virtual", 10.0, 0, {"segmentation": needs}, server)
    session = ChangedReplies(**hands)
    loop = Runner(cell, setting, session)
    loop.run()
    check_shares(loop)
    return loop, session


def all_frames_were_watched(loop: Runner) -> bool:
    (whole,) = rows(loop, "runs")
    return whole["frames"] == DURATION_S * FPS and whole["score"] is not None


@pytest.fixture(scope="module")
def sound():
    return run()[0]


@pytest.mark.slow
def test_sound_messages_are_not_refused(sound):
    assert all(row["refused"] is None for row in rows(sound, "transfers"))
    assert all(row["accepted"] for row in rows(sound, "updates"))
    assert "resync" not in {row["kind"] for row in rows(sound, "transfers")}


@pytest.fixture(scope="module", params=["jpeg", "h264"])
def coded(request):
    return Member("streaming", "ams", (("codec", request.param), ("interval_s", 5.0)))


@pytest.fixture(scope="module")
def torn(coded):
    return run(coded, link=replace(LINK, damage_prob=0.4))


class TestDamagedLink:
    """Of all messages in both directions 40 % arrive cut off or with bits turned."""

    @pytest.mark.slow
    def test_every_kind_of_message_is_refused_at_times_and_has_a_row(self, torn):
        refused = {row["kind"] for row in rows(torn[0], "transfers") if row["refused"]}
        assert {"samples", "update", "resync"} <= refused
        reasons = {row["refused"] for row in rows(torn[0], "transfers")} - {None, TOO_LATE}
        assert reasons
        assert {reason for reason in reasons if "torn" not in reason} == set()

    def test_the_device_continues_inference(self, torn):
        assert all_frames_were_watched(torn[0])

    def test_torn_samples_are_not_trained_on(self, torn):
        sent = [row for row in rows(torn[0], "transfers") if row["kind"] == "samples"]
        assert sum(row["uploads"] for row in rows(torn[0], "updates")) == sum(not row["refused"] for row in sent)

    def test_torn_messages_count_their_bytes(self, torn):
        up = [row["wire_bytes"] for row in rows(torn[0], "transfers") if row["direction"] == "up"]
        assert rows(torn[0], "runs")[0]["uplink_bytes"] == sum(up)

    def test_refused_updates_are_followed_by_every_weight_and_both_ends_agree_again(self, torn):
        loop, session = torn
        accepted = [row["accepted"] for row in rows(loop, "updates") if row["accepted"] is not None]
        assert {True, False} == set(accepted)
        assert any(row["uploads"] == 0 and row["accepted"] for row in rows(loop, "updates"))
        device, server = (
            next(session.nodes[n] for n in session.nodes if n.kind == k) for k in ("application", "learner")
        )
        last = next(row for row in reversed(rows(loop, "updates")) if row["accepted"] is not None)
        assert np.array_equal(device._versions[-1].state.vector, server._vector) == last["accepted"]

    @pytest.mark.slow
    def test_the_same_seed_damages_the_same_messages(self, torn, coded):
        again = run(coded, link=replace(LINK, damage_prob=0.4))[0]
        host = {"host_pack_seconds", "host_train_seconds"}
        for table in ("transfers", "updates", "runs"):
            first, second = (
                [{k: v for k, v in row.items() if k not in host} for row in rows(loop, table)]
                for loop in (torn[0], again)
            )
            assert first == second


@pytest.mark.slow
def test_where_everything_is_torn_the_generic_student_stays():
    loop, _ = run(link=replace(LINK, damage_prob=1.0))
    assert all(row["refused"] for row in rows(loop, "transfers"))
    assert rows(loop, "updates") == []
    assert all_frames_were_watched(loop)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("kind", ["cut", "bits"])
def test_each_direction_and_each_damage_singly(monkeypatch, direction, kind):
    """Every other message of one direction is damaged in one way."""
    drawn = {"up": 0, "down": 0}

    def alternate(rng, share):
        drawn[rng] += 1
        return MessageDamage(kind, drawn[rng]) if rng == direction and drawn[rng] % 2 else None

    monkeypatch.setattr(damage, "draw_damage", alternate)
    monkeypatch.setattr("driftlab.platform.sim.app.rng_for", named_after_their_direction)
    loop, _ = run()
    refused = [row["direction"] for row in rows(loop, "transfers") if row["refused"]]
    assert len(refused) > 3
    assert set(refused) == {direction}
    assert any(row["accepted"] for row in rows(loop, "updates"))
    assert all_frames_were_watched(loop)


def named_after_their_direction(seed: int, purpose: str, *rest: str) -> Any:
    return rest[-1] if purpose == "damage" else np.random.default_rng(seed)


@pytest.mark.slow
def test_torn_label_maps_are_refused_and_the_device_continues():
    loop, _ = run(TRACKING, FROZEN, replace(LINK, damage_prob=0.5))
    labels = [row["refused"] for row in rows(loop, "transfers") if row["kind"] == "labels"]
    assert any(labels)
    assert not all(labels)
    assert all("torn" in reason for reason in labels if reason)
    assert all_frames_were_watched(loop)


class TestLabels:
    def relabelled(self, change: Any, *members: Member) -> Any:
        def hand(reply: Reply) -> Reply:
            return replace(reply, payload=change(reply.payload.copy()))

        return run(*members, label=hand)[0]

    @pytest.mark.slow
    def test_unknown_labels_train_no_step(self):
        loop = self.relabelled(lambda labels: np.full_like(labels, IGNORE))
        assert {row["reason"] for row in rows(loop, "updates")} == {
            "no sample within the horizon has a label that counts"
        }
        assert all(row["train_start_s"] is None for row in rows(loop, "updates"))
        assert all_frames_were_watched(loop)

    @pytest.mark.slow
    def test_labels_outside_the_class_list_do_not_count(self, sound):
        def strange(labels: Any) -> Any:
            labels[:, ::2] = CLASSES + 3
            return labels

        loop = self.relabelled(strange)
        accepted = [row for row in rows(loop, "updates") if row["accepted"]]
        assert len(accepted) == sum(row["accepted"] for row in rows(sound, "updates"))
        assert all(np.isfinite(row["loss_last"]) for row in accepted)
        assert all(0 <= row["phi"] <= 1 for row in accepted)
        assert all(row["unlisted_labels"] > 0 for row in accepted)
        assert not any(row["unlisted_labels"] for row in rows(sound, "updates"))
        assert all_frames_were_watched(loop)

    @pytest.mark.slow
    def test_labels_outside_the_class_list_are_not_carried_along(self):
        """The device's prediction is used where the server's labels are invalid."""
        shown = {}
        for stray in (CLASSES + 3, IGNORE):
            loop = self.relabelled(
                lambda labels, stray=stray: np.where(labels > 2, stray, labels).astype(np.uint8), TRACKING, FROZEN
            )
            assert all_frames_were_watched(loop)
            taken = [row for row in rows(loop, "transfers") if row["kind"] == "labels" and not row["refused"]]
            assert taken
            assert all(row["unlisted_labels"] > 0 for row in taken)
            shown[stray] = rows(loop, "runs")[0]["score"]
        assert shown[CLASSES + 3] == shown[IGNORE]


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_leaves_the_weights_and_a_reason(monkeypatch):
    count = iter(range(10**6))
    plain = distill.backpropagate

    def poisoned(*args: Any) -> Any:
        loss = plain(*args)
        return loss * float("nan") if next(count) in (3, 4, 5) else loss  # the second phase, and the third's first step

    monkeypatch.setattr(distill, "backpropagate", poisoned)
    loop, session = run()
    reasons = [row["reason"] for row in rows(loop, "updates")]
    assert sum("not finite" in (reason or "") for reason in reasons) >= 2
    assert any(row["accepted"] for row in rows(loop, "updates"))
    assert all(
        np.isfinite(node._versions[-1].state.vector).all()
        for n, node in session.nodes.items()
        if n.kind == "application"
    )
    assert all_frames_were_watched(loop)


@pytest.mark.slow
def test_a_buffer_emptied_by_the_horizon_sends_the_plan_only():
    loop, _ = run(Member("streaming", "ams", (("codec", "jpeg"), ("interval_s", 5.0), ("horizon_s", 0.01))))
    assert all("no sample within the horizon" in row["reason"] for row in rows(loop, "updates"))
    assert {row["kind"] for row in rows(loop, "transfers")} == {"samples", "plan"}
    assert all_frames_were_watched(loop)


@pytest.mark.slow
def test_frames_larger_than_the_link_arrive_late_or_never_without_blocking():
    """A buffer of pictures takes longer than the next one takes to fill."""
    streaming = Member("streaming", "ams", (("codec", "png"), ("interval_s", 5.0), ("control", "fixed")))
    loop, _ = run(streaming, link=replace(LINK, up_kbps=10))
    sent = [row for row in rows(loop, "transfers") if row["kind"] == "samples"]
    late = [row for row in sent if row["refused"]]
    assert len(sent) == DURATION_S / 5 - 1
    assert late
    assert all(row["arrive_s"] >= DURATION_S and "session" in row["refused"] for row in late)
    assert len(rows(loop, "updates")) == len(sent) - len(late)
    assert all_frames_were_watched(loop)
