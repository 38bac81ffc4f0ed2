"""Training at each place and from each source: time, energy and rows in the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learning_factory import (
    FORWARD_S,
    FROM_TEACHER,
    LABEL_J,
    LABEL_S,
    ON_DEVICE,
    ON_SERVER,
    PHONE,
    TEACHER,
    OnDevice,
    on_device,
    seconds,
)
from loop_factory import (
    COST,
    FPS,
    WIRE,
    FakeSession,
    ScriptedStreaming,
    rows,
    run,
    run_real,
    uploads,
)

from driftlab.platform.core.records import Passes, Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.lab.seal import run as lab_run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.sim.ledger import PURPOSES
from driftlab.platform.sim.messages import TOO_LATE
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.link import Radio

FROM_NOTHING = Member("adaptation", "shot", (("iterations", 2), ("batch", 2)))


SYSTEMS = {
    (place, labels): (streaming, adaptation)
    for place, streaming in (("server", ON_SERVER), ("device", ON_DEVICE))
    for labels, adaptation in (("teacher", FROM_TEACHER), ("none", FROM_NOTHING))
}


@pytest.fixture(scope="module", params=SYSTEMS, ids=" ".join)
def ran(request):
    return *request.param, run_real(*SYSTEMS[request.param])


class FreeOnDevice(OnDevice):
    """Learns on the device in no time."""

    costs_time = False


@pytest.mark.parametrize(("streaming", "free"), [(OnDevice, False), (FreeOnDevice, True)])
def test_labelling_and_training_may_take_no_time_for_a_bound(streaming, free):
    _, loop = run(streaming(uploads(5.0)), session=on_device(), adaptation=FROM_TEACHER, **TEACHER)
    (update,) = rows(loop, "updates")
    assert (update["train_end_s"] == update["label_start_s"] == 5.0) == free
    assert update["isolated_s"] > 0


class TestPlacesAndLabels:
    """A learner at the server or on the device, with a teacher's labels or without labels."""

    @pytest.mark.slow
    def test_every_phase_has_a_row_with_its_costs(self, ran):
        place, labels, loop = ran
        updates = rows(loop, "updates")
        assert [row["learner_site"] for row in updates] == [place] * 3
        assert all(row["accepted"] and row["version"] and row["iterations"] for row in updates)
        assert all(row["isolated_s"] > 0 and row["energy_j"] > 0 and row["memory_bytes"] > 0 for row in updates)
        assert all((row["label_end_s"] is not None) == (labels == "teacher") for row in updates)

    def test_training_on_the_device_sends_no_message(self, ran):
        place, _, loop = ran
        (whole,), (device,) = rows(loop, "runs"), rows(loop, "devices")
        sizes = [device[f"{way}_bytes"] for way in ("uplink", "downlink")]
        assert sizes == [whole[f"{way}_bytes"] for way in ("uplink", "downlink")]
        if place == "device":
            assert rows(loop, "transfers") == []
            assert sizes == [0, 0]
            assert device["radio_j"] == device["coding_j"] == 0
        else:
            assert {row["kind"] for row in rows(loop, "transfers")} == {"samples", "update"}
            assert min(sizes) > 0
            assert min(device["radio_j"], device["coding_j"]) > 0

    def test_the_device_is_charged_for_its_training_and_labelling(self, ran):
        place, labels, loop = ran
        (device,) = rows(loop, "devices")
        here = place == "device"
        assert (device["training_j"] > 0, device["labelling_j"] > 0) == (here, here and labels == "teacher")
        if here:
            assert sum(row["energy_j"] for row in rows(loop, "updates")) == pytest.approx(
                device["training_j"] + device["labelling_j"]
            )
        assert device["patching_j"] > 0

    def test_energy_is_the_sum_of_its_parts_to_the_last_bit(self, ran):
        (device,), (whole,) = rows(ran[2], "devices"), rows(ran[2], "runs")
        for row in (device, whole):
            assert row["energy_j"] == sum(row[f"{purpose}_j"] for purpose in PURPOSES)
        assert whole["energy_j"] == device["energy_j"]

    def test_frames_are_predicted_throughout(self, ran):
        (whole,) = rows(ran[2], "runs")
        assert whole["frames"] == 20 * FPS
        assert whole["score"] is not None


class ExclusiveMember(OnDevice):
    """A member that trains on the device and pauses inference meanwhile."""

    training_runs = "exclusive"


PHASE_S = 50 * 3 * FORWARD_S  # fifty steps: forward, and back by inputs and by weights


PHASE_J = task_cost(COST, PHONE, Passes((4,) * 50, (4,) * 50)).joules


def visits() -> tuple[Event, ...]:
    """`b` comes at 3 s, in the first window, `a` goes at 14 s, in the second, and is back at 27 s."""
    a, b = AppGoals("a", FPS), AppGoals("b", FPS)
    return Event(0.0, "start", a), Event(3.0, "start", b), Event(14.0, "stop", a), Event(27.0, "start", a)


def switching() -> FakeSession:
    return FakeSession(switch=lambda node, variant: variant)


class TestShares:
    @pytest.mark.parametrize("streaming", [OnDevice, ExclusiveMember])
    def test_rows_cover_the_session_although_phases_divide_windows(self, streaming):
        _, loop = run(streaming(uploads(5.0, 12.0, 17.0)), session=on_device(), **TEACHER)
        shares = rows(loop, "shares")
        assert len(shares) > 2 * 3 + 3
        assert seconds(loop, "segmentation") == pytest.approx(30.0, abs=1e-9)
        learning = [row for row in shares if row["training_share"]]
        assert sum(row["window_s"] for row in learning) > 0
        assert {row["inference_share"] for row in learning} == {0.0 if streaming is ExclusiveMember else 0.5}

    @pytest.mark.parametrize("name", ["uniform", "nestdnn"])
    def test_rows_cover_the_time_between_arrival_and_departure(self, name):
        given = {"events": visits(), "session": switching(), "scheduling": Member("scheduling", name)}
        _, loop = run(ScriptedStreaming(), apps=("a", "b"), **given)
        present_s = {"uniform": (14 + 3, 27), "nestdnn": (20, 20)}[name]  # nestdnn receives both at the next window
        assert (seconds(loop, "a"), seconds(loop, "b")) == pytest.approx(present_s, abs=1e-9)

    @pytest.mark.parametrize("name", ["uniform", "nestdnn", "mcdnn", "status_quo"])
    def test_of_those_that_stay_every_one_has_rows_for_the_whole_session(self, name):
        given = {"duration_s": 25.0, "session": switching(), "scheduling": Member("scheduling", name)}
        _, loop = run(ScriptedStreaming(), apps=("a", "b", "c"), **given)
        assert [seconds(loop, app) for app in "abc"] == [25.0] * 3


class TestScaling:
    """37 ms and 64 ms a frame, at 20 frames/s: only the first is done before the next frame comes."""

    FAMILY = tuple(
        Variant(name, known, 100, alone_s) for name, known, alone_s in (("s", 0.7, 0.037), ("l", 0.8, 0.064))
    )

    def test_under_uniform_scaling_chooses_the_network_that_keeps_up(self):
        session = switching()
        _, loop = run(ScriptedStreaming(), measured=self.FAMILY, session=session, fps=20.0)
        assert {row["network"] for row in rows(loop, "shares")} == {"s"}
        assert [note.facts for note in session.of("switch")] == [0]

    @pytest.mark.slow
    def test_where_it_does_no_frame_of_a_real_network_is_lost(self, tmp_path):
        """Of the two networks of a nested family the larger one takes more than the 50 ms between two frames."""
        macs = count_cost(build("half", 8, seed=0), 32, 48).macs
        slow = {"name": "slow", "macs_per_s": macs / 0.07, "bytes_per_s": 1e12, "overhead_s": 0, "memory_bytes": 10**9}
        slow |= {"idle_w": 1, "busy_w": 2}
        scaling = {
            "name": "nested",
            "keep_ratios": [0.9, 0.6],
            "accuracy_loss": 1.0,
            "prune_epochs": 0,
            "grow_epochs": 0,
        }
        workload = {"name": "streets/running", "duration_s": 4, "fps": 20, "height": 32, "width": 48}
        document = {
            "name": "scaled",
            "systems": [{"name": "scaled", "scaling": scaling}],
            "bounds": False,
            "snapshots": 0,
            "student": {"network": "half", "pretrain_steps": 5},
            "workloads": [workload],
            "fleets": [{"name": "slow", "devices": [{"hardware": slow}]}],
        }
        outcome = lab_run(document, out=tmp_path / "run", open_backend=InlineBackend)
        assert not outcome.failed, outcome.failed
        tables = open_run(outcome.directory)
        alone_ms = tables.frame("variants")["latency_ms"].tolist()
        assert alone_ms[0] < 50 < alone_ms[1]
        frames = tables.frame("frames")
        assert frames["processed"].all()
        assert frames["latency_ms"].to_numpy() == pytest.approx(alone_ms[0])


# Energy ---------------------------------------------------------------------------------------------------------------


class TestEnergy:
    def test_the_radio_consumes_the_energy_of_two_messages(self):
        """On from 5 to 6 s; down from 9.5 to 9.7 s, when it was asleep; then it waits as long as allowed."""
        radio = Radio(1e-3, 2e-3, active_w=2.0, wake_j=5.0, tail_w=0.5, tail_s=3.0)
        _, loop = run(ScriptedStreaming(uploads(5.0)), link=replace(WIRE, radio=radio))
        up_j, down_j = 5 + 1000 * 1e-3 + 1 * 2.0, 3 * 0.5 + 5 + 2000 * 2e-3 + 0.2 * 2.0
        assert rows(loop, "devices")[0]["radio_j"] == pytest.approx(up_j + down_j + 3 * 0.5)

    def test_the_energy_of_a_run_is_the_sum_of_its_devices_and_their_parts(self):
        radio = Radio(1.1e-3, 2.3e-3, 1.7, 0.3, 0.7, 2.9)
        _, loop = run(ScriptedStreaming(uploads(5.0, 13.0)), devices=3, link=replace(WIRE, radio=radio))
        devices, (whole,) = rows(loop, "devices"), rows(loop, "runs")
        for row in (*devices, whole):
            assert row["energy_j"] == sum(row[f"{purpose}_j"] for purpose in PURPOSES)
        assert whole["energy_j"] == pytest.approx(sum(row["energy_j"] for row in devices), rel=1e-14)

    def test_learning_that_outlasts_the_session_is_charged_until_its_end(self):
        """Labels come first; both take half of the device."""
        send_s = 30.0 - (LABEL_S + PHASE_S / 4) / 0.5
        _, loop = run(OnDevice(uploads(send_s)), session=on_device(), **TEACHER)
        (update,), (device,) = rows(loop, "updates"), rows(loop, "devices")
        assert device["labelling_j"] == pytest.approx(LABEL_J)
        assert device["training_j"] == pytest.approx(PHASE_J / 4)
        assert update["energy_j"] == pytest.approx(LABEL_J + PHASE_J)
        assert (update["reason"], update["accepted"]) == (TOO_LATE, None)
