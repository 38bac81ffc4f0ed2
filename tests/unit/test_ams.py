"""AMS and its baselines: equal bits on server and device, the server's time, and ends of phases."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from loop_factory import about, check_shares, rows

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import ModelCost, Stored
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.rounds import NO_LABEL
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.setting import (
    AppNetworks,
    AppNodeConfig,
    AppSpec,
    BuiltNetwork,
    Cell,
    Device,
    StreamSpec,
    StudentSpec,
    TeacherSpec,
    TrainingSite,
    WorkloadSetup,
)
from driftlab.platform.streaming.base import DownlinkPlan, StreamFacts, Wire
from driftlab.platform.world import hardware, link
from driftlab.platform.world.apps import AppGoals

HEIGHT, WIDTH, CLASSES, FPS = 32, 48, 8, 2.0
FIXED = Member("scaling", "fixed")
WIRES = [
    Wire(),
    Wire("fp16", "gzip"),
    Wire("fp32"),
    Wire("bf16"),
    Wire("int8", feedback=True),
    Wire("int4", "gaps", True),
]


def distill(**params: Any) -> Member:
    return Member("adaptation", "distill", tuple({"iterations": 2, "batch": 1, **params}.items()))


def frames(start: int, stop: int) -> Frames:
    rng = np.random.default_rng(start)
    shape = (stop - start, HEIGHT, WIDTH)
    return Frames(
        times_s=np.arange(start, stop) / FPS,
        images=rng.integers(0, 256, (*shape, 3), dtype=np.uint8),
        scenes=np.zeros(stop - start, np.int32),
        labels=rng.integers(0, CLASSES, shape, dtype=np.uint8),
    )


class TestTwoCopies:
    """After an update, the weights that the server trains and those that the device runs are equal bits."""

    @pytest.fixture
    def server(self) -> LearnerNode:
        spec = StudentSpec("half", CLASSES, HEIGHT, WIDTH, distill(), FIXED, 0)
        return LearnerNode(spec, state_of(build("half", CLASSES, seed=0)))

    @pytest.fixture
    def device(self) -> AppNode:
        student = StudentSpec("half", CLASSES, HEIGHT, WIDTH, Member("adaptation", "frozen"), FIXED, 0)
        model = build("half", CLASSES, seed=0)
        spec = AppNodeConfig(
            "cam", "segmentation", student, hardware.find("server-h200"), count_cost(model, HEIGHT, WIDTH)
        )
        return AppNode(spec, state_of(model))

    def phase(self, server: LearnerNode, number: int, **plan: Any) -> bytes:
        seen = frames(10 * number, 10 * number + 2)
        server.store(seen, seen.labels)
        return server.train(DownlinkPlan(None, Phase(), **plan)).payload

    def digests(self, server: LearnerNode, device: AppNode, number: int) -> set[str]:
        """Hash the server's weights, the device's patched copy, and those it runs once a frame has been shown."""
        device.run_stream(frames(10 * number + 4, 10 * number + 6), None, (10 * number + 6) / FPS, ((0.0, 1.0),))
        running = hashlib.sha256(vector.read(device._model).tobytes()).hexdigest()[:16]
        training = hashlib.sha256(vector.read(server._model).tobytes()).hexdigest()[:16]
        return {training, device.finish().facts.digest, running}

    @pytest.mark.parametrize("wire", WIRES, ids=str)
    def test_they_are_equal_after_every_update(self, server, device, wire):
        seen = set()
        for number in range(4):
            update = self.phase(server, number, wire=wire)
            assert device.apply(update, 5.0 * number + 1).facts.accepted
            digests = self.digests(server, device, number)
            assert len(digests) == 1
            seen |= digests
        assert len(seen) == 4

    @pytest.mark.parametrize("wire", WIRES, ids=str)
    def test_a_lost_update_is_detected_and_a_full_transfer_repairs_it(self, server, device, wire):
        device.apply(self.phase(server, 0, wire=wire), 1.0)
        before = device.finish().facts.digest
        self.phase(server, 1, wire=wire)  # lost on the way
        refused = device.apply(self.phase(server, 2, wire=wire), 11.0).facts
        assert (refused.accepted, refused.version) == (False, 1)
        assert "out of order" in refused.reason
        assert device.finish().facts.digest == before
        assert device.apply(self.phase(server, 3, dense=True), 16.0).facts.version == 4
        assert len(self.digests(server, device, 3)) == 1
        assert device.apply(self.phase(server, 4, wire=wire), 21.0).facts.accepted
        assert len(self.digests(server, device, 4)) == 1


@dataclass(eq=False)
class LosingSession(InlineSession):
    """Nodes in this process; some updates are cut short on their way to the device."""

    torn: tuple[int, ...] = ()
    _updates: int = field(default=0)

    def call(self, node, verb, *args):
        if verb == "apply":
            self._updates += 1
            if self._updates in self.torn:
                update: InlineJob = args[0]
                args = (update.reply.payload[:-7], *args[1:])
        return super().call(node, verb, *args)


def run(
    streaming: Member,
    adaptation: Member,
    *,
    devices: int = 1,
    duration_s: float = 45.0,
    fps: float = FPS,
    torn: tuple[int, ...] = (),
) -> tuple[Runner, LosingSession]:
    student = build("half", CLASSES, seed=0)
    streams = [StreamSpec("streets/running", number, HEIGHT, WIDTH, fps, duration_s) for number in range(devices)]
    edges = tuple(
        Device(
            f"device-{number}",
            hardware.find("laptop"),
            link.LINKS["zero-delay"],
            (AppSpec(AppGoals("segmentation"), stream),),
        )
        for number, stream in enumerate(streams)
    )
    cell = Cell("a/b/c/seed-0", System("a", "", streaming, adaptation), "b", "c", edges, 0, duration_s)
    size = vector.layout_of(student).size
    cost = ModelCost(macs=1_000_000, parameters=size, weight_bytes=4 * size, activation_bytes=1000)
    setting = WorkloadSetup(
        experiment="test",
        clock="virtual",
        window_s=10.0,
        snapshots=0,
        apps={
            "segmentation": AppNetworks(
                BuiltNetwork("half", single_profile(cost), "", state_of(student)),
                None,
                TeacherSpec(),
                label_s=0.2,
                classes=CLASSES,
            )
        },
        server=TrainingSite(hardware.find("server-v100"), 0.2, 0.25),
    )
    session = LosingSession(torn=torn)
    loop = Runner(cell, setting, session)
    loop.run()
    check_shares(loop)
    return loop, session


def ams(**params: Any) -> Member:
    return Member("streaming", "ams", tuple({"control": "fixed", "codec": "jpeg", **params}.items()))


class TestResync:
    """A torn update makes later updates unusable; the device requests a full transfer of the weights."""

    @pytest.mark.slow
    def test_a_refusal_leads_to_one_full_update(self):
        loop, session = run(ams(interval_s=5.0, value_format="int4"), distill(fraction=0.1), torn=(2,))
        updates = rows(loop, "updates")
        size = vector.layout_of(build("half", CLASSES, seed=0)).size
        assert [row["accepted"] for row in updates] == [True, False, *[True] * 7]
        assert [row["version"] for row in updates] == [1, None, 3, 4, 5, 6, 7, 8, 9]
        assert [row["values"] == size for row in updates] == [False, False, True, *[False] * 6]
        assert "torn" in updates[1]["reason"]
        assert rows(loop, "runs")[0]["updates"] == 8
        nodes = {node.kind: made for node, made in session.nodes.items()}
        assert np.array_equal(nodes["learner"]._vector, nodes["application"]._versions[-1].state.vector)

    @pytest.mark.slow
    def test_the_device_predicts_with_its_last_intact_weights(self):
        loop, _ = run(ams(interval_s=5.0), distill(), torn=(1, 2, 3), duration_s=30.0)
        versions = np.concatenate([chunk["version"] for chunk in loop.ledger.rows["frames"]])
        assert rows(loop, "runs")[0]["frames"] == 60
        assert set(versions[:18]) == {0}  # torn at 6.5 s, sent whole at once and again at 7.5 s, and at 8.5 s patched
        assert versions[18] == 4


@pytest.fixture(scope="module")
def six() -> Runner:
    """Make six devices that request 1.5 times the capacity of one GPU."""
    return run(ams(), distill(), devices=6)[0]


class TestServerTime:
    """Labelling takes 0.2 s per frame, a phase 2 steps of 0.25 s; the link takes no time."""

    def busy_s(self, loop: Runner) -> list[tuple[float, float]]:
        return sorted((row["label_start_s"], row["train_end_s"]) for row in rows(loop, "updates"))

    @pytest.mark.slow
    def test_one_device_never_waits(self):
        loop, _ = run(ams(), distill())
        updates = rows(loop, "updates")
        service_s = 10 * 0.2 + 2 * 0.25
        assert [row["label_start_s"] for row in updates] == about([10.0, 20.0, 30.0, 40.0])
        assert [row["arrive_s"] for row in updates] == about([at + service_s for at in (10, 20, 30, 40)])

    @pytest.mark.slow
    @pytest.mark.parametrize("devices", [3, 6])  # 0.75 and 1.5 of the capacity of one GPU
    def test_its_busy_time_adds_up_and_no_sample_is_dropped(self, devices, six):
        loop = six if devices == 6 else run(ams(), distill(), devices=devices)[0]
        busy = self.busy_s(loop)
        assert all(start >= stop - 1e-9 for (_, stop), (start, _) in itertools.pairwise(busy))
        updates = rows(loop, "updates")
        service_s = sum(row["samples"] * 0.2 + row["iterations"] * 0.25 for row in updates)
        assert sum(stop - start for start, stop in busy) == pytest.approx(service_s)
        assert service_s <= busy[-1][1] - busy[0][0] + 1e-9
        assert sum(row["samples"] for row in updates) == devices * 4 * 10

    @pytest.mark.slow
    def test_devices_are_served_in_turn(self, six):
        served = sorted((row["label_start_s"], row["device"]) for row in rows(six, "updates"))
        sent = [(row["arrive_s"], row["device"]) for row in rows(six, "transfers") if row["kind"] == "samples"]
        for arrive_s, mine in sent:
            start_s = next(start_s for start_s, device in served if device == mine and start_s >= arrive_s)
            before = [device for at_s, device in served if arrive_s < at_s < start_s]
            assert len(before) == len(set(before)) <= 5
        assert max(row["uploads"] for row in rows(six, "updates")) > 1


class TestEnds:
    @pytest.mark.slow
    def test_an_interval_longer_than_the_rest_of_the_stream_ends_uploads(self):
        loop, _ = run(ams(interval_s=30.0), distill())
        assert [row["label_start_s"] for row in rows(loop, "updates")] == about([30.0])

    def test_a_horizon_that_drops_every_sample_trains_no_step(self):
        """The samples of a busy server may be older than the horizon when their turn comes."""
        loop, _ = run(ams(horizon_s=1.0), distill(), duration_s=15.0)
        (update,) = rows(loop, "updates")
        assert (update["reason"], update["version"], update["bytes"]) == (NO_LABEL, None, 0)
        assert rows(loop, "transfers")[-1]["kind"] == "plan"


class TestJustInTimeThresholds:
    """Real training on frames of a stream: a threshold of 0 is always reached, one above 1 never.

    A frame lasts 0.2 s, less than the shortest gap, so that nothing but the rule itself sets the gaps.
    """

    def run(self, threshold: float, fps: float = 5.0) -> tuple[list[dict[str, Any]], list[float]]:
        streaming = Member("streaming", "just_in_time", (("threshold", threshold), ("max_steps", 3)))
        momentum = distill(optimiser="momentum", learning_rate=1e-3)
        loop, _ = run(streaming, momentum, duration_s=12.0, fps=fps)
        sent_s = [row["queued_s"] for row in rows(loop, "transfers") if row["kind"] == "samples"]
        return rows(loop, "updates"), list(np.diff(sent_s))

    @pytest.mark.slow
    def test_a_threshold_of_zero_never_trains_and_the_gap_doubles(self):
        updates, gaps_s = self.run(0.0)
        assert {row["reason"] for row in updates} == {"good enough"}
        assert {row["iterations"] for row in updates} == {0}
        assert gaps_s == pytest.approx([8 / 30, 16 / 30, 32 / 30, *[64 / 30] * 4])

    @pytest.mark.slow
    def test_an_unreachable_threshold_takes_every_step_and_the_shortest_gap(self):
        updates, gaps_s = self.run(1.01)
        assert {row["iterations"] for row in updates} == {3}
        assert all(row["version"] for row in updates if row["arrive_s"] is not None)  # the last one is late
        assert gaps_s == pytest.approx([8 / 30] * 44)

    @pytest.mark.slow
    def test_no_gap_is_shorter_than_a_frame(self):
        assert self.run(1.01, fps=2.0)[1] == pytest.approx([0.5] * 23)


class TestRates:
    """Both controllers' steps scale with their ranges, so a faster world only needs a faster clock."""

    def trace(self, faster: float, control: str) -> list[tuple[float, float]]:
        params = {"interval_s": 10 / faster, "min_fps": 0.1 * faster, "max_fps": faster, "control": control}
        member = Member("streaming", "ams", tuple(params.items())).make()
        session = StreamFacts(fps=30.0, duration_s=100.0)
        state, found = member.start(session), []
        for phi in (0.1, 0.3, 0.0, 0.0, 0.2, 0.0, 0.1, 0.0, 0.0, 0.1, 0.9, 0.5, 1.0, 1.0, 1.0):
            state = member.plan_downlink(state, session, Stored(2, 2, 0.0, 0.0, (phi,)), 0.0).state
            found.append((state.fps / faster, state.interval_s * faster))
        return found

    @pytest.mark.parametrize("control", ["tanh", "linear", "scaled"])
    def test_four_times_the_pace_is_the_same_trace(self, control):
        usual, fast = self.trace(1.0, control), self.trace(4.0, control)
        assert np.array(fast) == pytest.approx(np.array(usual))
        assert len({interval_s for _, interval_s in usual}) > 3
