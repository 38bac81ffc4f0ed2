"""The loop on a session that only takes notes, so that its rows follow from a few lines of arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import (
    Applied,
    Captured,
    Finished,
    InferenceReport,
    Labelled,
    ModelCost,
    Packed,
    Passes,
    PhaseCheck,
    Received,
    Reply,
    SampleDescription,
    Stored,
    Trained,
    Uploaded,
)
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, SchedulerInput, Scheduling
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.session import NodeId
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
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Streaming
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.link import LINKS, LinkProfile, MessageDamage

FPS = 2.0
WIRE = LinkProfile("test", up_kbps=8, down_kbps=80, rtt_ms=1000)  # 1000 bytes: 1 s up, 0.1 s down, then 0.5 s of flight
COST = ModelCost(macs=10_000_000, parameters=10, weight_bytes=40, activation_bytes=100)
UP_BYTES, DOWN_BYTES, RESENT_BYTES = 1000, 2000, 4000
LABEL_S, STEP_S = 0.2, 0.02
PHASE = Phase(50)


@dataclass(eq=False)
class Note:
    """One call: it is also the job."""

    node: NodeId
    verb: str
    args: tuple[Any, ...]
    now_s: float
    facts: Any
    rows: dict = field(default_factory=dict)
    asked_s: list[float] = field(default_factory=list)  # when its result was waited for


class FakeSession:
    """A session that records its calls and returns scripted replies."""

    def __init__(self, **script: Callable[..., Any]) -> None:
        self.script = {**SCRIPT, **script}
        self.placed: list[tuple[float, NodeId, tuple[Any, ...]]] = []
        self.notes: list[Note] = []
        self.loop: Runner | None = None

    @property
    def now_s(self) -> float:
        return self.loop.clock.now

    def place(self, node, *args):
        self.placed.append((self.now_s, node, args))

    def call(self, node, verb, *args):
        assert node in [placed for _, placed, _ in self.placed], f"{node} was called and never placed"
        facts = self.script[verb](node, *args)
        rows = {"frames": [{"device": [node.name], "frame": [len(self.notes)]}]} if verb == "run_stream" else {}
        self.notes.append(Note(node, verb, args, self.now_s, facts, rows))
        return self.notes[-1]

    def ready(self, job):
        return True

    def result(self, job):
        job.asked_s.append(self.now_s)
        return Reply(job.facts, job.rows)

    def of(self, verb: str) -> list[Note]:
        return [note for note in self.notes if note.verb == verb]


def frames_between(start_s: float, stop_s: float) -> int:
    return int(np.ceil(stop_s * FPS) - np.ceil(start_s * FPS))


def processed(node, capturing, truth, until_s, *schedules) -> InferenceReport:
    return report_of(capturing.facts.frames)


def report_of(n: int) -> InferenceReport:
    return InferenceReport(n, n, 0.01 * n, {"inference": 0.1 * n}, n, 0.5 * n, 0.25 * n, np.eye(2, dtype=np.int64) * n)


CHECKED = PhaseCheck((0.4, 0.7), (0.5, 0.6), (0.45, None))
SCRIPT: dict[str, Callable[..., Any]] = {
    "capture": lambda node, start_s, stop_s: Captured(frames_between(start_s, stop_s), has_truth=True),
    "upload": lambda node, plan: uploaded(len(plan.times_s), plan.times_s[-1]),
    "receive": lambda node, packing, plan, size, damage: received(packing.facts, damage),
    "sample_with_truth": lambda node, times_s: Captured(len(times_s), has_truth=True),
    "label": lambda node, frames: Labelled(frames.facts.frames),
    "store": lambda node, frames, labels, stamp_s: stored(frames.facts),
    "drop_samples_before": lambda node, oldest_s: 40,
    "describe_samples": lambda node: SampleDescription(None, (), Passes()),
    "store_expert": lambda node: None,
    "train": lambda node, plan, watched=False: trained(),
    "check": lambda node, later: CHECKED,
    "apply": lambda node, update, arrive_s, damage: Applied(1, accepted=True),
    "resend": lambda node: trained(iterations=0, bytes=RESENT_BYTES),
    "run_stream": processed,
    "finish": lambda node: Finished(f"weights of {node.name}", report_of(0)),
}


def uploaded(frames: int, newest_s: float, size: int = UP_BYTES) -> Uploaded:
    return Uploaded(frames, size, size + 700, newest_s, 0.25)


@dataclass(frozen=True)
class ReceivedSamples(Received):
    """A receiver's reply, and the `store` that this session continues with."""

    newest_s: float = 0.0


def received(sent: Uploaded, damage: MessageDamage | None) -> ReceivedSamples:
    return ReceivedSamples(sent.frames, "torn" if damage else "", sent.newest_s)


def stored(sent: ReceivedSamples, **changes: Any) -> Stored:
    return replace(Stored(sent.frames, 40, sent.newest_s, sent.newest_s, (0.1, 0.3), unlisted_labels=2), **changes)


def trained(**changes: Any) -> Trained:
    done = Trained(
        frames=40,
        iterations=50,
        bytes=DOWN_BYTES,
        values=500,
        loss_first=2.0,
        loss_last=1.0,
        score=None,
        skipped="",
        host_seconds=0.0,
    )
    return replace(done, **changes)


@dataclass(frozen=True)
class ScriptedStreaming(Streaming):
    """A streaming member that sends scripted plans; its state counts the server's replies."""

    plans: tuple[Sampling, ...] = ()
    phase: Phase | None = PHASE
    free: bool = False
    seen: list = field(default_factory=list, compare=False)

    feeds_learner = True

    def start(self, session):
        return 0

    def plan_uplink(self, state, session, now_s, seen):
        self.seen.append((now_s, state))
        return next((plan for plan in self.plans if (plan.next_s or plan.send_s) > now_s), None)

    def plan_downlink(self, state, session, stored, now_s):
        return DownlinkPlan(state + 1, self.phase)

    def learn(self, state, trained):
        return state + 10


class Labels(ScriptedStreaming):
    """A streaming member that requests labels only."""

    label_tracking = "chained"
    feeds_learner = False


def tracking() -> FakeSession:
    """Take every label."""
    return FakeSession(
        pack=lambda node, labels: Packed(DOWN_BYTES), track=lambda node, *args: Applied(0, accepted=True)
    )


@dataclass(frozen=True)
class FixedMember:
    """A replacement for Member whose `make` returns a given object."""

    member: Any
    name: str = "one_time"
    family: str = "streaming"
    params: tuple[tuple[str, Any], ...] = ()

    def make(self):
        return self.member

    def defaults(self):
        return {}


@dataclass
class PerWindow(Scheduling):
    """Call a function in each window."""

    decide: Callable[[SchedulerInput], Allocation]
    triggers = WINDOW_ONLY

    def allocate(self, window: SchedulerInput) -> Allocation:
        return self.decide(window)


def uploads(*send_s: float, frames: int = 10, **more: Any) -> tuple[Sampling, ...]:
    return tuple(Sampling(tuple(np.minimum(np.arange(frames) / FPS, at)), send_s=at, **more) for at in send_s)


def begin(
    streaming: Streaming,
    *,
    devices: int = 1,
    apps: tuple[str, ...] = ("segmentation",),
    duration_s: float = 30.0,
    fps: float = FPS,
    gpus: int = 1,
    step_s: float | None = STEP_S,
    adaptation: Any = Member("adaptation", "distill"),
    scheduling: Any = Member("scheduling", "uniform"),
    session: FakeSession | None = None,
    events: tuple[Event, ...] | None = None,
    link: LinkProfile = WIRE,
    machine: Any = None,
    **setting: Any,
) -> tuple[FakeSession, Runner]:
    """Make a cell whose devices all have these applications, before its first event."""
    streams = [StreamSpec("streets/running", number, 32, 48, fps, duration_s) for number in range(devices)]
    specs = tuple(
        Device(
            f"device-{number}",
            machine or hardware.find("phone-hi"),
            link,
            tuple(AppSpec(AppGoals(app, fps), stream) for app in apps),
            events,
        )
        for number, stream in enumerate(streams)
    )
    system = System(
        "scripted",
        "",
        FixedMember(streaming),
        adaptation,
        setting.pop("scaling", Member("scaling", "fixed")),
        scheduling,
        setting.pop("bound", None),
    )
    cell = Cell("scripted/running/one/seed-0", system, "running", "one", specs, 0, duration_s, gpus)
    given = {
        "experiment": "test",
        "clock": "virtual",
        "window_s": 10.0,
        "snapshots": 0,
        "server": TrainingSite(hardware.find("server-v100"), LABEL_S, step_s),
    }
    needs = {
        "student": BuiltNetwork("tiny", single_profile(COST), "digest", "the student's weights"),
        "teacher": None,
        "teacher_spec": TeacherSpec(),
        "label_s": LABEL_S,
        "classes": 8,
    }
    needs |= {name: setting.pop(name) for name in (*needs, "measured") if name in setting}
    given["apps"] = dict.fromkeys(apps, AppNetworks(**needs))
    session = session or FakeSession()
    advances: list[float] = []
    loop = Runner(cell, WorkloadSetup(**{**given, **setting}), session, advances.append)
    session.loop, session.advances = loop, advances
    return session, loop


def run(streaming: Streaming, **options: Any) -> tuple[FakeSession, Runner]:
    """Run such a cell to its end."""
    session, loop = begin(streaming, **options)
    loop.run()
    check_shares(loop)
    return session, loop


def begin_real(
    streaming: Any,
    adaptation: Any,
    *,
    network: str = "tiny_classifier",
    duration_s: float = 20.0,
    window_s: float = 5.0,
    session: InlineSession | None = None,
    scheduling: Any = Member("scheduling", "uniform"),
    machine: Any = None,
    **setting: Any,
) -> Runner:
    """Make a cell of one device that runs a real network on signs at a motorway, in this process."""
    from driftlab.platform.networks.architectures import build
    from driftlab.platform.networks.cost_counter import count_cost
    from driftlab.platform.networks.predict import state_of

    stream = StreamSpec("signs/motorway", 3, 32, 48, FPS, duration_s)
    classes = len(open_stream(stream.workload, seed=3, height=32, width=48, fps=FPS, duration_s=duration_s).classes)
    model = build(network, classes, seed=0)
    weights = InlineJob(NodeId("builder", ""), "", Reply(payload=state_of(model)))
    student = BuiltNetwork(network, single_profile(count_cost(model, 32, 48)), "", weights)
    spec = Device("cam", machine or hardware.find("laptop"), LINKS["lte"], (AppSpec(AppGoals("signs", FPS), stream),))
    system = System("real", "", streaming, adaptation, scheduling=scheduling)
    cell = Cell("real/signs/one/seed-0", system, "signs", "one", (spec,), 0, duration_s)
    context = AppNetworks(student, None, TeacherSpec(task="classification"), 0.002, classes)
    server = TrainingSite(hardware.find("server-v100"), 0.002, None)
    setting = {"clock": "virtual", "snapshots": 0, **setting}
    return Runner(
        cell,
        WorkloadSetup("test", window_s=window_s, apps={"signs": context}, server=server, **setting),
        session or InlineSession(),
    )


def run_real(streaming: Any, adaptation: Any, **options: Any) -> Runner:
    """Run such a cell to its end."""
    loop = begin_real(streaming, adaptation, **options)
    loop.run()
    check_shares(loop)
    return loop


def check_shares(loop: Runner) -> None:
    """Refuse rows of shares by which a device's applications ever have more than the whole machine."""
    for device in {row["device"] for row in rows(loop, "shares")}:
        mine = [row for row in rows(loop, "shares") if row["device"] == device]
        spans = [
            (one["time_s"], one["time_s"] + one["window_s"], one["inference_share"] + (one["training_share"] or 0))
            for one in mine
        ]
        edges = sorted({edge for start_s, stop_s, _ in spans for edge in (start_s, stop_s)})
        for left_s, right_s in itertools.pairwise(edges):
            middle_s = (left_s + right_s) / 2
            total = sum(share for start_s, stop_s, share in spans if start_s < middle_s < stop_s)
            assert right_s - left_s < 1e-9 or total <= 1 + 1e-6, f"{total} of {device} at {middle_s} s"


def rows(loop: Runner, table: str) -> list[dict[str, Any]]:
    """List the rows of a table that come one by one."""
    return [{name: values[0] for name, values in chunk.items()} for chunk in loop.ledger.rows.get(table, [])]


def about(expected: Any) -> Any:
    """Compare times up to a millisecond.

    On this phone, encoding ten frames takes a fifth of one, and patching less.
    """
    return pytest.approx(expected, abs=1e-3)


def times(row: dict[str, Any], *names: str) -> list[float]:
    return [row[name] for name in names]
