"""Trials of training configurations, switches between windows, and faulty members."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import learning_factory as factory
import numpy as np
import pytest
from loop_factory import (
    COST,
    FPS,
    WIRE,
    FakeSession,
    FixedMember,
    ScriptedStreaming,
    begin,
    begin_real,
    rows,
    run,
    run_real,
    uploads,
)

from driftlab.platform.adaptation.base import Adaptation, Adapted, Phase
from driftlab.platform.core.records import Captured, Passes, TrialScores, Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling
from driftlab.platform.sim.messages import TOO_LATE
from driftlab.platform.sim.rounds import DECLINED
from driftlab.platform.sim.setting import TrainingSite
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.cost import inference_s, task_cost

# Trials ---------------------------------------------------------------------------------------------------------------


@dataclass
class Chooser(Scheduling):
    """A scheduler that chooses a given training configuration and records its calls."""

    config: int | None = 0
    trial_fraction: float = 1.0
    asked: list[SchedulerInput] = field(default_factory=list)

    def initial_trials(self, configs: int) -> Sequence[int]:
        return range(configs)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        return Allocation((Grant(0.6, training_share=0.4, config=self.config),) * len(window.demands))


class TestTrials:
    """Two lengths have trials; each takes its steps and one scoring of the other half of the samples."""

    DISTILL = Member("adaptation", "distill", (("step_choices", (10, 20)),))
    SCORING = Passes((5,))
    WORKS = tuple(Passes((4,) * steps + (5,), (4,) * steps) for steps in (10, 20))
    TRIAL_S = sum(3 * steps * factory.FORWARD_S for steps in (10, 20)) + 3 * inference_s(COST, factory.PHONE, batch=5)
    TRIAL_J = sum(task_cost(COST, factory.PHONE, passes).joules for passes in (SCORING, *WORKS))

    def ran(self, config: int | None, **more: Any) -> tuple[FakeSession, Any, Chooser]:
        scheduler = Chooser(config)
        session = factory.on_device(
            run_trials=lambda node, plan, phases: TrialScores(0.5, (0.6, 0.7), self.WORKS, self.SCORING)
        )
        given = {"adaptation": self.DISTILL, "scheduling": FixedMember(scheduler), **factory.TEACHER, **more}
        session, loop = run(factory.OnDevice(uploads(5.0)), session=session, **given)
        return session, loop, scheduler

    def test_the_scheduler_is_called_for_every_reason_in_order(self):
        a = AppGoals("segmentation", FPS)
        events = Event(0.0, "start", a), Event(12.0, "stop", a), Event(25.0, "start", a)
        _, _, scheduler = self.ran(0, events=events)
        asked = [(window.reason, window.start_s) for window in scheduler.asked]
        assert [reason for reason, _ in asked] == [
            "window",
            "offer",
            "offer",
            "end",
            "window",
            "departure",
            "window",
            "arrival",
        ]
        assert [at for reason, at in asked if reason != "end"] == pytest.approx(
            [0, 5, 5 + (factory.LABEL_S + self.TRIAL_S) / 0.4, 10, 12, 20, 25]
        )

    def test_training_configs_are_offered_with_cost_and_accuracy(self):
        session, _, scheduler = self.ran(1)
        offered = [window.demands[0].learning for window in scheduler.asked if window.reason == "offer"][1]
        assert offered.state == "offered"
        assert offered.accuracy_before == 0.5
        assert [config.accuracy for config in offered.configs] == [0.6, 0.7]
        assert [config.cost.isolated_s for config in offered.configs] == pytest.approx(
            [3 * n * factory.FORWARD_S for n in (10, 20)]
        )
        (tried,) = session.of("run_trials")
        assert tried.args[1] == (Phase(10), Phase(20))

    def test_a_part_of_each_config_may_be_tried_and_the_whole_is_trained(self):
        scheduler = Chooser(1, trial_fraction=0.15)
        session = factory.on_device(
            run_trials=lambda node, plan, phases: TrialScores(0.5, (0.6, 0.7), self.WORKS, self.SCORING)
        )
        given = {"adaptation": self.DISTILL, "scheduling": FixedMember(scheduler), **factory.TEACHER}
        run(factory.OnDevice(uploads(5.0)), session=session, **given)
        offered = [window.demands[0].learning for window in scheduler.asked if window.reason == "offer"][1]
        assert session.of("run_trials")[0].args[1] == (Phase(2), Phase(3))
        assert [config.trial_fraction for config in offered.configs] == [0.2, 0.15]
        assert session.of("train")[0].args[0].phase == Phase(20)

    @pytest.mark.parametrize(("config", "steps"), [(0, 10), (1, 20)])
    def test_the_chosen_config_is_trained_after_its_trial_at_the_training_share(self, config, steps):
        session, loop, _ = self.ran(config)
        (update,) = rows(loop, "updates")
        assert session.of("train")[0].args[0].phase == Phase(steps)
        assert update["training_config"] == f"{steps} steps"
        begun_s = 5 + (factory.LABEL_S + self.TRIAL_S) / 0.4
        assert update["train_start_s"] == pytest.approx(begun_s)
        assert update["train_end_s"] == pytest.approx(begun_s + 3 * steps * factory.FORWARD_S / 0.4)
        assert update["isolated_s"] == pytest.approx(factory.LABEL_S + self.TRIAL_S + 3 * steps * factory.FORWARD_S)
        phase_j = task_cost(COST, factory.PHONE, Passes((4,) * steps, (4,) * steps)).joules
        (device,) = rows(loop, "devices")
        assert device["training_j"] == pytest.approx(self.TRIAL_J + phase_j)
        assert device["labelling_j"] == pytest.approx(factory.LABEL_J)

    def test_during_training_the_scheduler_receives_the_remaining_cost(self):
        """A window begins in the middle of the phase."""
        _, _, scheduler = self.ran(1, window_s=5.6)
        (running,) = (
            window.demands[0].learning
            for window in scheduler.asked
            if window.reason == "window" and window.demands[0].learning is not None
        )
        begun_s = 5 + (factory.LABEL_S + self.TRIAL_S) / 0.4
        assert begun_s < 5.6 < begun_s + 60 * factory.FORWARD_S / 0.4
        assert (running.state, running.accuracy_before, running.accuracy_after) == ("running", 0.5, 0.7)
        assert running.left.isolated_s == pytest.approx(60 * factory.FORWARD_S - (5.6 - begun_s) * 0.4)

    @pytest.mark.parametrize("config", [None, 2])
    def test_without_a_config_no_training_runs_and_a_row_has_the_reason(self, config):
        session, loop, _ = self.ran(config)
        (update,) = rows(loop, "updates")
        assert (update["reason"], update["train_start_s"], update["iterations"]) == (DECLINED, None, 0)
        assert update["isolated_s"] == pytest.approx(factory.LABEL_S + self.TRIAL_S)  # finding out was not free
        assert not session.of("train")
        assert rows(loop, "devices")[0]["training_j"] == pytest.approx(self.TRIAL_J)


# Between two windows --------------------------------------------------------------------------------------------------


@dataclass
class Switcher(Scheduling):
    """Grants the larger network at windows and when a phase ends, and the smaller one when a phase begins."""

    asked: list[SchedulerInput] = field(default_factory=list)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        which = 0 if window.reason == "offer" else 1
        return Allocation(tuple(Grant(0.5, training_share=0.5, variant=which) for _ in window.demands))


class TestBetweenWindows:
    FAMILY = tuple(Variant(name, None, 100, 0.01) for name in "sl")

    def ran(self, *send_s: float, steps: int = 50) -> tuple[FakeSession, Any, Switcher]:
        scheduler, session = Switcher(), factory.on_device(switch=lambda node, variant: variant)
        given = {"measured": self.FAMILY, "scheduling": FixedMember(scheduler), "session": session, **factory.TEACHER}
        session, loop = run(factory.OnDevice(uploads(*send_s), Phase(steps)), **given)
        return session, loop, scheduler

    def test_a_device_switches_when_the_scheduler_grants_another_network(self):
        session, loop, scheduler = self.ran(12.0)
        ended_s = next(window.start_s for window in scheduler.asked if window.reason == "end")
        assert 12.0 < ended_s < 20.0
        switches = [(note.now_s, note.facts) for note in session.of("switch") if note.node.kind == "application"]
        assert switches == [(0.0, 1), (12.0, 0), (pytest.approx(ended_s), 1)]
        granted = [(row["time_s"], row["network"]) for row in rows(loop, "shares") if row["window_s"]]
        assert [name for _, name in granted] == ["l", "l", "s", "s", "l", "l"]  # asked again when its labels are there
        pieces = [note.args[:2] for note in session.of("capture")]
        assert (10.0, 12.0) in pieces
        assert (
            sum(note.facts.frames for note in session.of("run_stream")) == 30 * FPS
        )  # no frame twice, and none left out

    def test_no_scheduler_is_called_after_the_session(self):
        _, loop, scheduler = self.ran(29.0, steps=2000)
        assert min(window.window_s for window in scheduler.asked) > 0
        assert 29.0 < max(window.start_s for window in scheduler.asked) < 29.5
        assert factory.seconds(loop, "segmentation") == pytest.approx(30.0)


# Running on -----------------------------------------------------------------------------------------------------------


class TestWindows:
    def test_the_loop_may_be_run_window_by_window(self):
        _, whole = run(ScriptedStreaming(uploads(5.0, 12.0)), duration_s=25.0, devices=2)
        _, loop = begin(ScriptedStreaming(uploads(5.0, 12.0)), duration_s=25.0, devices=2)
        seen = [(progress.time_s, progress.accounts["device-1"].frames) for progress in loop.windows()]
        assert seen == [(10.0, 0), (20.0, 20), (25.0, 50)]  # the results of a window are read one window later
        for table in ("frames", "transfers", "updates", "shares", "devices", "runs"):
            assert without_host(rows(loop, table)) == without_host(rows(whole, table))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("streaming", "adaptation"),
        [
            (factory.ON_SERVER, factory.FROM_TEACHER),
            (Member("streaming", "local"), Member("adaptation", "tent", (("stream_batch", 4),))),
        ],
        ids=["ams", "tent"],
    )
    def test_a_longer_session_begins_equally(self, streaming, adaptation):
        """Three windows of five; none of these members reads the length of the session."""
        short, long = (frames_of(begin_real(streaming, adaptation, duration_s=d), 3) for d in (20.0, 40.0))
        assert short["frame"].tolist() == list(range(len(short["frame"])))
        assert len(short["frame"]) >= 20
        for name, values in short.items():
            assert np.array_equal(values, long[name], equal_nan=values.dtype.kind == "f"), name


class TestLengthOfWindows:
    """The length of windows only changes when frames are processed."""

    SLOW = replace(hardware.find("phone-lo"), macs_per_s=1e7, bytes_per_s=2e7)  # one batch takes several frame periods

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("streaming", "adaptation"),
        [
            ("local", ("tent", ("stream_batch", 4))),
            ("local", ("tent", ("predict_on", "frame"), ("stream_batch", 4), ("variant", "run"))),
            (
                "local",
                (
                    "tent",
                    ("predict_on", "frame"),
                    ("training_runs", "concurrent"),
                    ("stream_batch", 4),
                    ("variant", "run"),
                ),
            ),
            ("local", ("adabn", ("stream_batch", 4))),
            ("local", ("shot", ("stream_batch", 4))),
            ("on_device", ("shot", ("batch", 4), ("iterations", 1))),
        ],
        ids=str,
    )
    def test_frames_scores_training_batches_and_digests_do_not_depend_on_windows(self, streaming, adaptation):
        name, *given = adaptation
        members = Member("streaming", streaming), Member("adaptation", name, tuple(given))
        found = []
        for window_s in (1.0, 2.0, 5.0, 10.0, 30.0):
            loop = run_real(*members, window_s=window_s, machine=self.SLOW)
            (whole,) = rows(loop, "runs")
            training_rows = without_host([*rows(loop, "adaptations"), *rows(loop, "updates")])
            found.append((columns(loop, "frames"), training_rows, whole["weights_digest"], whole["training_j"]))
        frames, training_rows, digest, training_j = found[0]
        assert training_rows and training_j > 0
        for other, *rest in found[1:]:
            assert rest == [training_rows, digest, pytest.approx(training_j)]
            for column, values in frames.items():
                assert np.array_equal(values, other[column], equal_nan=values.dtype.kind == "f"), column


def without_host(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("host")} for row in found]


def frames_of(loop: Any, windows: int) -> dict[str, Any]:
    """Run some windows of a cell and return its rows of the frames table."""
    for _, _progress in zip(range(windows), loop.windows(), strict=False):
        pass
    return columns(loop, "frames")


def columns(loop: Any, table: str) -> dict[str, Any]:
    """Join the columns of a cell's table."""
    chunks = loop.ledger.rows[table]
    names = [name for name in chunks[0] if name not in ("device", "app") and chunks[0][name] is not None]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}


class LateSession(FakeSession):
    """One device's jobs of a verb are done only some time after they were begun, by the clock on the wall."""

    def __init__(self, verb: str, late_s: float, **script: Any) -> None:
        super().__init__(**script)
        self.verb, self.late_s = verb, late_s
        self.done_s: dict[int, float] = {}
        self.blocked_s = 0.0

    def call(self, node, verb, *args):
        note = super().call(node, verb, *args)
        if verb == self.verb and node.name in ("device-0", "segmentation") and not self.done_s:
            self.done_s[id(note)] = time.monotonic() + self.late_s
        return note

    def ready(self, job):
        return time.monotonic() >= self.done_s.get(id(job), 0.0)

    def result(self, job):
        wait_s = max(0.0, self.done_s.get(id(job), 0.0) - time.monotonic())
        self.blocked_s += wait_s
        time.sleep(wait_s)
        return super().result(job)


@pytest.mark.parametrize("verb", ["capture", "upload", "run_stream", "store", "drop_samples_before", "train", "apply"])
def test_by_the_wall_clock_no_device_waits_for_another_one_s_job(verb):
    session = LateSession(verb, 0.3, capture=lambda node, start_s, stop_s: Captured(1, has_truth=True))
    given = {
        "clock": "wall",
        "window_s": 0.1,
        "server": TrainingSite(factory.PHONE, 0.001, 1e-4),
        "link": replace(WIRE, rtt_ms=0.0),
    }
    given["link"] = replace(given["link"], up_kbps=1e6, down_kbps=1e6)
    session, loop = run(ScriptedStreaming(uploads(0.05)), session=session, devices=2, duration_s=0.4, **given)
    assert session.blocked_s < 0.05
    shares = [row["time_s"] for row in rows(loop, "shares") if row["device"] == "device-1"]
    assert shares == pytest.approx([0.0, 0.1, 0.2, 0.3])
    watched = [note.now_s for note in session.of("run_stream") if note.node.name == "device-1"]
    assert max(watched) == pytest.approx(0.4, abs=1e-6)


# Members of one's own -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Faulty(Adaptation):
    """A member that fails on its second training batch, and does not change weights on the others."""

    how: str = "raises"
    stream_batch: int = 5
    labels = "none"

    def prepare(self, model: Any, pack: Any = None, *, go_on: Any = None) -> int:
        return 0

    def adapt(self, model: Any, state: int, batch: Any, phase: Phase) -> Adapted:
        good = Adapted(state + 1, 1, (1.0,), passes=Passes((1,), (1,)))
        return getattr(self, self.how)(model, good) if state == 1 else good

    def reset(self, model: Any, state: int) -> int:
        return 0

    def raises(self, model: Any, good: Adapted) -> Adapted:
        raise ValueError("no such thing")

    def nan_weights(self, model: Any, good: Adapted) -> Adapted:
        next(model.parameters()).data.fill_(float("nan"))
        return good

    def nan_loss(self, model: Any, good: Adapted) -> Adapted:
        return replace(good, losses=(1.0, float("nan")))

    def no_work(self, model: Any, good: Adapted) -> Adapted:
        return replace(good, passes=None)

    def negative(self, model: Any, good: Adapted) -> Adapted:
        return replace(good, passes=Passes((-1,), (1,)))

    def endless(self, model: Any, good: Adapted) -> Adapted:
        while True:
            time.sleep(0.001)

    def very_long(self, model: Any, good: Adapted) -> Adapted:
        return replace(good, passes=Passes((10**14,), (10**14,)))  # years on any device


FAULTS = {
    "raises": "ValueError: no such thing",
    "nan_weights": "not finite",
    "nan_loss": "a loss is not finite",
    "no_work": "passes is None",
    "negative": "at least one frame",
    "endless": "did not end within 0.5 s",
    "very_long": "1 s are allowed",
}


def limit_s(how: str) -> float:
    return 0.5 if how == "endless" else 60.0


@pytest.mark.parametrize("how", FAULTS)
class TestFaultyMembers:
    @pytest.mark.slow
    def test_a_faulty_batch_has_a_row_with_the_reason_and_the_device_continues(self, how):
        member = FixedMember(Faulty(how), "shot")
        loop = run_real(Member("streaming", "local"), member, member_limit_s=limit_s(how), training_batch_limit_s=1.0)
        skipped = [row["skipped"] for row in rows(loop, "adaptations")]
        assert FAULTS[how] in skipped[1]
        assert skipped[0] is None
        self.check_all_predicted(loop)

    @pytest.mark.slow
    @pytest.mark.parametrize("place", ["device", "server"])
    def test_a_faulty_phase_has_an_update_row_with_the_reason_and_the_device_continues(self, how, place):
        streaming = {"device": factory.ON_DEVICE, "server": factory.ON_SERVER}[place]
        loop = run_real(streaming, FixedMember(Faulty(how), "shot"), member_limit_s=limit_s(how))
        first, second = [(row["reason"], row["accepted"]) for row in rows(loop, "updates")][:2]
        assert first == (None, True)
        assert (FAULTS[how] if how != "very_long" else TOO_LATE) in second[0]
        assert second[1] is None
        self.check_all_predicted(loop)

    def check_all_predicted(self, loop: Any) -> None:
        (whole,) = rows(loop, "runs")
        assert (whole["status"], whole["frames"]) == ("done", 20 * FPS)
        processed = np.concatenate([chunk["processed"] for chunk in loop.ledger.rows["frames"]])
        assert processed[-10:].sum() >= 5  # interrupted training batches come again and again
