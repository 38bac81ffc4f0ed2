"""Page-in: a switch reads a network from storage, and the frames of that time are lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from loop_factory import COST, FakeSession, FixedMember, PerWindow, ScriptedStreaming, rows, run

from driftlab.platform.scaling.base import Profile
from driftlab.platform.scaling.fixed import Fixed
from driftlab.platform.scheduling.base import Allocation, Grant
from driftlab.platform.sim.nodes.share_timeline import ShareTimeline
from driftlab.platform.sim.setting import BuiltNetwork
from driftlab.platform.world import hardware
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.cost import inference_s

FPS, WINDOW_S, DURATION_S = 10.0, 10.0, 40.0
SMALL, LARGE = 900_000, 1_000_000
SWITCHES = {0.0: 0, 10.0: 1, 20.0: 0, 30.0: 1}  # window: network
STORAGE = {"storage_bytes_per_s": 1e6, "storage_latency_s": 0.05}
MACHINE = replace(hardware.find("phone-hi"), overhead_s=0.0, **STORAGE)  # a megabyte per second
FAMILY = BuiltNetwork(
    "tiny",
    tuple(Profile(str(size), 0.5, size, COST) for size in (SMALL, LARGE)),
    "digest",
    "the family's weights",
)


@dataclass(frozen=True)
class Family(Fixed):
    """Two networks of equal cost, nested or not."""

    nested: bool = False


def switching(nested: bool, apps: tuple[str, ...] = ("segmentation",), **more):
    """Run applications that switch at the start of every window, all at once."""
    share = 1 / len(apps)
    scheduling = PerWindow(
        lambda window: Allocation((Grant(share, variant=SWITCHES[window.start_s]),) * len(window.demands))
    )
    session = FakeSession(switch=lambda node, variant: variant)
    given = {"scheduling": FixedMember(scheduling), "scaling": FixedMember(Family(nested), "fixed", "scaling")}
    given |= {"machine": MACHINE, "session": session, "student": FAMILY, "apps": apps}
    return run(ScriptedStreaming(), fps=FPS, duration_s=DURATION_S, **{**given, **more})


def processed_frames(session: FakeSession, latency_s: float) -> np.ndarray:
    """Return the times of the frames that an application processes at the shares of the simulator."""
    timeline, free_s, done = ShareTimeline(), 0.0, []
    for note in session.of("run_stream"):
        *_, until_s, schedule = note.args
        timeline.extend(until_s, schedule)
    for frame in range(round(DURATION_S * FPS)):
        time_s = frame / FPS
        if time_s >= free_s - 1e-9:
            free_s = time_s + timeline.inference_duration_s(time_s, latency_s)
            done.append(time_s)
    return np.array(done)


def test_independent_networks_lose_the_frames_that_page_in_takes_and_nested_ones_do_not():
    """A network of 1 MB takes 1.05 s, the difference of 0.1 MB takes 0.15 s, a smaller one nothing.

    Inference takes far less than a frame. The frame that arrives at the switch waits for its network; of the others,
    those that arrive before the end of loading are lost.
    """
    latency_s = inference_s(COST, MACHINE)
    assert latency_s < 1e-3
    loads_s = {False: (1.05, 0.95, 1.05), True: (0.15, 0.0, 0.15)}  # at 10, 20 and 30 s
    for nested, expected_s in loads_s.items():
        session, loop = switching(nested)
        assert [row["paging_s"] for row in rows(loop, "shares")] == pytest.approx([0.0, *expected_s])
        lost = [
            time_s
            for start_s, load_s in zip((10, 20, 30), expected_s, strict=True)
            for time_s in np.arange(1, 10 * FPS) / FPS + start_s
            if time_s < start_s + load_s + latency_s
        ]
        done = processed_frames(session, latency_s)
        assert len(lost) == (10 + 9 + 10 if not nested else 1 + 0 + 1)
        assert sorted({*np.round(done, 6), *np.round(lost, 6)}) == pytest.approx(np.arange(400) / FPS)
        assert len(done) + len(lost) == DURATION_S * FPS


def test_storage_reads_one_network_after_another():
    """Both applications load a megabyte at 10 s; the second one waits for the first."""
    _, loop = switching(False, ("first", "second"))
    at_10_s = {row["app"]: row["paging_s"] for row in rows(loop, "shares") if row["time_s"] == 10.0}
    assert at_10_s == {"first": pytest.approx(1.05), "second": pytest.approx(2.1)}


def test_a_load_that_outlasts_its_window_goes_on_in_the_next():
    slow = replace(MACHINE, storage_bytes_per_s=80e3)  # 12.55 s per megabyte; then 0.9 MB in 11.3 s
    session, loop = switching(False, machine=slow)
    assert [row["paging_s"] for row in rows(loop, "shares")] == pytest.approx([0.0, 10.0, 10.0, 10.0])
    assert processed_frames(session, 1e-3).max() <= 10.0


def test_the_first_networks_are_loaded_before_the_session_and_those_of_arrivals_are_not():
    app = AppGoals("segmentation", FPS)
    events = Event(0.0, "start", app), Event(5.0, "stop", app), Event(20.0, "start", app)
    _, loop = switching(True, events=events)
    assert [(row["time_s"], row["paging_s"]) for row in rows(loop, "shares")][:2] == [
        (0.0, 0.0),
        (20.0, pytest.approx(0.95)),
    ]


def test_loading_costs_energy_by_the_byte_and_dropping_none():
    _, loop = switching(False)
    shares = rows(loop, "shares")
    assert [row["paging_j"] for row in shares] == pytest.approx([3.6e-3 * mb for mb in (0.9, 1.0, 0.9, 1.0)])
    assert rows(loop, "runs")[0]["paging_j"] == pytest.approx(3.6e-3 * 3.8)
