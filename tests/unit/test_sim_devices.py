"""Many applications on one device: the times, shares and networks of each application."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from command_factory import run_command

from driftlab.errors import RequestError, RunError
from driftlab.platform.core.records import ModelCost, Variant
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, Grant, SchedulerInput, Scheduling
from driftlab.platform.sim.device import AppShare, DeviceSim
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.sim.setting import AppSpec, Device, StreamSpec
from driftlab.platform.world import hardware, link
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.clock import make_clock

STREAM = StreamSpec("streets/running", 0, 32, 48, 2.0, 30.0)
COST = ModelCost(macs=1, parameters=1, weight_bytes=4, activation_bytes=4)
SIZES = (100, 300)
VARIANTS = tuple(Variant(f"v{i}", 0.5 + 0.2 * i, size, 0.01 * (i + 1), 0.5) for i, size in enumerate(SIZES))


@dataclass
class ScriptedScheduler(Scheduling):
    """A scheduler that returns scripted plans and records its calls."""

    allocations: list[Allocation]
    triggers = WINDOW_ONLY

    def __post_init__(self) -> None:
        self.asked: list[SchedulerInput] = []

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        return self.allocations[len(self.asked) - 1]


def granted(*given: tuple[float, int | None], notes: tuple[str, ...] = ("", ""), state: Any = None) -> Allocation:
    return Allocation(
        tuple(Grant(share, variant=which, note=note) for (share, which), note in zip(given, notes, strict=False)), state
    )


def host(
    asked: Scheduling, *names: str, events: tuple[Event, ...] | None = None, nested: bool = False, **more: Any
) -> DeviceSim:
    apps = tuple(AppSpec(AppGoals(name, priority=2.0), STREAM) for name in names)
    spec = Device("d", hardware.find("phone-hi"), link.LINKS["lte"], apps, events)
    variants = more.get("variants", VARIANTS)
    networks = SimpleNamespace(student=SimpleNamespace(cost=COST), variants=lambda hardware: variants)
    runner: Any = SimpleNamespace(
        clock=make_clock("virtual"),
        session=None,
        scheduling=asked,
        scaling=more.get("scaling", SimpleNamespace(nested=nested)),
        streaming=SimpleNamespace(
            training_runs=more.get("training_runs", "concurrent"),
            learner_site="device",
            start=lambda facts: None,
        ),
        free=False,
        learns_on_stream=more.get("beside", False),
        adaptation=SimpleNamespace(training_runs="concurrent"),
        setup=SimpleNamespace(apps=dict.fromkeys(names, networks), run_networks=False),
        cell=SimpleNamespace(
            seed=0, system=SimpleNamespace(scheduling=asked, scaling="the scaling member", uses_future=False)
        ),
    )
    device = DeviceSim(runner, spec)
    device.on_shares = lambda: None
    return device


def window(device: DeviceSim, start_s: float) -> list[AppShare]:
    """Share the device out for the window of 5 s that begins at a time."""
    if start_s > device.runner.clock.now:
        device.runner.clock.run(until=start_s)
    device.begin_window(start_s, 5.0)
    return device.current


class TestGrants:
    def test_a_scheduler_receives_all_applications_and_its_last_state(self):
        asked = ScriptedScheduler([granted((0.25, 0), (0.75, 1), state="kept"), granted((1.0, 1), (0.0, None))])
        device = host(asked, "a", "b")
        window(device, 0.0)
        window(device, 5.0)
        first, second = asked.asked
        assert (first.state, second.state) == (None, "kept")
        assert (first.reason, first.start_s, first.window_s) == ("window", 0.0, 5.0)
        assert [demand.app for demand in first.demands] == ["a", "b"]
        assert [demand.running for demand in first.demands] == [None, None]
        assert [demand.running for demand in second.demands] == [0, 1]
        assert second.demands[0].priority == 2.0
        assert second.memory_bytes == hardware.find("phone-hi").memory_bytes

    @pytest.mark.parametrize(("nested", "up", "down"), [(False, (300, 100), (100, 300)), (True, (200, 0), (0, 200))])
    def test_a_switch_moves_everything_or_the_difference(self, nested, up, down):
        device = host(ScriptedScheduler([granted((1.0, variant)) for variant in (0, 1, 1, 0)]), "a", nested=nested)
        moved = [window(device, 5.0 * k)[0].moved_bytes for k in range(4)]
        assert moved == [(100, 0), up, (0, 0), down]

    def test_each_application_receives_its_note(self):
        first = granted((1.0, 0), (0.0, None), notes=("", "waits: b is too big"))
        device = host(ScriptedScheduler([first, granted((0.5, 0), (0.5, 0))]), "a", "b")
        notes = [[one.grant.note for one in window(device, 5.0 * k)] for k in range(2)]
        assert notes == [["", "waits: b is too big"], ["", ""]]

    def test_a_waiting_application_frees_its_memory_and_is_loaded_again(self):
        asked = ScriptedScheduler([granted((1.0, 1)), granted((0.0, None)), granted((1.0, 1))])
        device = host(asked, "a")
        grants = [window(device, 5.0 * k)[0] for k in range(3)]
        assert [grant.moved_bytes for grant in grants] == [(300, 0), (0, 300), (300, 0)]
        assert [grant.network and grant.network.name for grant in grants] == ["v1", None, "v1"]
        assert [window.demands[0].running for window in asked.asked] == [None, 1, None]

    def test_scaling_chooses_networks_that_the_scheduler_leaves_open(self):
        """The call has the share, the frame period, the goal and the previous choice."""
        budgets = []

        def select_variant(variants, budget, state):
            budgets.append((budget.latency_s, budget.accuracy, budget.share, state))
            return len(budgets) - 1, f"choice {len(budgets)}"

        scaling = SimpleNamespace(nested=False, chooser="own", predictor="law", select_variant=select_variant)
        device = host(ScriptedScheduler([granted((0.75, None))] * 2), "a", scaling=scaling)
        networks = [window(device, 5.0 * k)[0].network for k in range(2)]
        assert networks == list(VARIANTS)
        assert budgets == [(1 / 30, None, 0.75, None), (1 / 30, None, 0.75, "choice 1")]

    @pytest.mark.parametrize(("count", "share"), [(1, 0.5), (3, 0.5), (2, 0.6)])
    def test_too_few_grants_or_too_large_shares_are_refused(self, count, share):
        with pytest.raises(
            RunError, match=r"\(device=d, time=0 s\) gave [13] grants to 2 applications|add up to 1.2 of 1"
        ):
            window(host(ScriptedScheduler([granted(*[(share, 0)] * count, notes=("",) * 3)]), "a", "b"), 0.0)

    @pytest.mark.parametrize("again_s", [0.0, -1.0, math.nan])
    def test_a_call_at_once_in_the_past_or_at_no_time_is_refused(self, again_s):
        again = replace(granted((0.5, 0), (0.5, 0)), again_s=again_s)
        with pytest.raises(RunError, match=rf"\(device=d, time=0 s\) requested a call after {again_s:g} s.*above 0"):
            window(host(ScriptedScheduler([again]), "a", "b"), 0.0)

    @pytest.mark.parametrize("share", [math.nan, -0.1, 1.1, {"accelerator": 0.5, "cpu": math.inf}])
    @pytest.mark.parametrize("name", ["inference_share", "training_share"])
    def test_a_share_that_is_none_is_refused_with_its_application(self, name, share):
        grant = replace(Grant(0.5, variant=0), **{name: share})
        with pytest.raises(RunError, match=rf"\(device=d, time=0 s\) gave a {name} = \S+: it must be from 0 to 1"):
            window(host(ScriptedScheduler([Allocation((grant,))]), "a"), 0.0)

    @pytest.mark.parametrize("variant", [-1, 2, math.nan])
    def test_a_network_that_an_application_lacks_is_refused(self, variant):
        with pytest.raises(RunError, match=rf"\(device=d, time=0 s\) gave a network {variant}: it has networks 0 to 1"):
            window(host(ScriptedScheduler([granted((0.5, variant))]), "a"), 0.0)
        scaling = SimpleNamespace(
            nested=False,
            chooser="own",
            predictor="law",
            select_variant=lambda variants, budget, state: (variant, state),
        )
        device = host(ScriptedScheduler([granted((0.5, None))]), "a", scaling=scaling)
        with pytest.raises(RunError, match=rf"\(device=d, time=0 s\) chose network {variant} for a, which has"):
            window(device, 0.0)


class TestLearning:
    """Application `a` begins to learn on the device at 2 s and ends at 4 s."""

    def shares(self, grant: Grant, **more: Any) -> list[tuple[float, float | None, float]]:
        device = host(ScriptedScheduler([Allocation((grant,))]), "a", variants=VARIANTS[:1], **more)
        window(device, 0.0)
        clock = device.runner.clock
        clock.run(until=2.0)
        work = device.processor.enter("a/training")
        clock.run(until=4.0)
        device.processor.leave(work)
        device.close(5.0 if clock.run(until=5.0) is None else 0.0)
        return [(one.inference_share, one.training_share or None, length_s) for one, length_s in device.closed]

    def test_training_takes_half_of_the_application_s_share(self):
        assert self.shares(Grant(0.8)) == [(0.8, None, 2.0), (0.4, 0.4, 2.0), (0.8, None, 1.0)]

    def test_exclusive_training_takes_the_whole_share(self):
        assert self.shares(Grant(0.5, training_share=0.25), training_runs="exclusive")[1] == (0.0, 0.75, 2.0)

    def test_concurrent_training_keeps_both_shares_all_the_time(self):
        device = host(ScriptedScheduler([granted((0.8, None))]), "a", variants=VARIANTS[:1], beside=True)
        (one,) = window(device, 0.0)
        assert (one.inference_share, one.training_share) == (0.4, 0.4)
        assert [
            device.processor.share_schedule(f"a/{what}", 0.0, 5.0) for what in ("inference", "concurrent-training")
        ] == [((0.0, 0.4),)] * 2


def several(**more: Any) -> dict[str, Any]:
    workload = {
        "name": "streets/running",
        "alias": "both",
        "duration_s": 20,
        "fps": 2,
        "height": 32,
        "width": 48,
        "apps": [{"name": "scene"}, {"name": "cars", "network": "tiny_detector", "priority": 3}],
    }
    return {
        "name": "several",
        "systems": ["ams"],
        "bounds": False,
        "window_s": 5,
        "student": {"pretrain_steps": 0},
        "workloads": [{**workload, **more}],
    }


class TestCells:
    def test_a_single_application_has_its_device_s_name_and_others_a_longer_one(self):
        (cell,) = cells_of(parse(several()))
        (device,) = cell.devices
        assert [device.name_of(tenant) for tenant in device.apps] == ["device-0000/scene", "device-0000/cars"]
        alone = replace(device, apps=device.apps[:1])
        assert alone.name_of(alone.apps[0]) == "device-0000"

    def test_arrivals_are_the_same_for_every_system_and_differ_by_device_and_seed(self):
        churn = {"tick_s": 1.0, "min_apps": 1, "arrival_prob": 0.4, "departure_prob": 0.4}
        document = several(churn=churn) | {"systems": ["ams", "no_custom"], "seeds": [0, 1]}
        document["fleets"] = [{"name": "two", "devices": [{"count": 2}]}]
        cells = cells_of(parse(document))
        drawn = {
            (cell.seed, device.name): {device.events for other in cells if other.seed == cell.seed}
            for cell in cells
            for device in cell.devices
        }
        assert all(len(events) == 1 for events in drawn.values())
        assert len({device.events for cell in cells for device in cell.devices}) == 4

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"apps": [{"name": "a"}, {"name": "a"}]}, "apps names a twice"),
            ({"apps": [{"name": "a", "network": "tyni"}]}, "Unknown network 'tyni'"),
            ({"apps": [{"name": "a", "workload": "streets/runing"}]}, "Did you mean 'streets/running'"),
            ({"apps": [{"name": "a", "variants": "nowhere.csv"}]}, "nowhere.csv"),
            ({"churn": {"min_apps": 5}}, "at least 5 applications"),
            ({"churn": {"lest": 1}}, "lest"),
        ],
    )
    def test_a_wrong_document_is_refused_with_the_reason(self, change, message):
        with pytest.raises(RequestError, match=message):
            parse(several(**change))


class TestRuns:
    @pytest.mark.slow
    def test_each_application_sends_trains_and_is_scored_separately(self, tmp_path):
        outcome = run(several(), out=tmp_path / "run", open_backend=InlineBackend)
        assert not outcome.failed
        tables = open_run(outcome.directory)
        assert set(tables.frame("frames")["app"]) == set(tables.frame("updates")["app"]) == {"scene", "cars"}
        shares = tables.frame("shares")
        assert shares["inference_share"].tolist() == [0.5] * 8
        assert shares["network"].tolist() == ["tiny", "tiny_detector"] * 4
        (whole,) = tables.frame("runs").to_dict("records")
        assert whole["frames"] == 2 * 40
        assert whole["student"] == "tiny, tiny_detector"
        messages = tables.frame("transfers").query("direction == 'up'")
        for _, sent in messages.groupby("app"):
            assert sent["sequence"].tolist() == list(range(1, len(sent) + 1))
        assert set(messages["app"]) == {"scene", "cars"}

    @pytest.mark.slow
    def test_a_device_without_applications_has_empty_tables(self, tmp_path, few_claims):
        document = several(
            churn={"min_apps": 0, "arrival_prob": 0, "departure_prob": 1}, run_networks=True, duration_s=5
        )
        (live,) = document["workloads"]
        document["workloads"] = [{**live, "alias": "live"}, {**live, "alias": "still", "run_networks": False}]
        outcome = run(document, out=tmp_path / "run", open_backend=InlineBackend)
        assert not outcome.failed
        assert write_report(outcome.directory).exists()
        tables = open_run(outcome.directory)
        assert all(tables.frame(name).empty for name in ("shares", "frames", "transfers", "updates"))
        runs = tables.frame("runs").set_index("workload")
        assert runs.loc["live", "frames"] == 0
        assert pd.isna(runs.loc["still", "frames"])
        assert runs["score"].isna().all()

    @pytest.mark.slow
    def test_applications_with_measured_networks_get_shares_only(self, tmp_path):
        measured = tmp_path / "measured.csv"
        measured.write_text("variant,accuracy,latency_ms,memory_mb\nsmall,0.7,10,1\nlarge,0.9,40,4\n")
        apps = [{"name": name, "variants": str(measured), "latency_goal_s": 0.1} for name in "abc"]
        document = several(
            apps=apps, run_networks=False, churn={"min_apps": 1, "arrival_prob": 0.3, "departure_prob": 0.3}
        )
        document["systems"] = [{"name": "shared", "base": "no_custom", "scheduling": "nestdnn"}]
        tables = open_run(run(document | {"window_s": 1}, out=tmp_path / "run", open_backend=InlineBackend).directory)
        shares = tables.frame("shares")
        assert shares.groupby("time_s")["inference_share"].sum().to_numpy() == pytest.approx(1.0)
        assert set(shares["network"]) <= {"small", "large"}
        could = tables.frame("variants")
        assert could[["app", "network", "accuracy", "memory_bytes"]].to_numpy().tolist() == [
            [app, *one] for app in "abc" for one in (["small", 0.7, 10**6], ["large", 0.9, 4 * 10**6])
        ]
        assert shares["latency_ms"].to_numpy() == pytest.approx(
            shares["network"].map({"small": 10, "large": 40}) / shares["inference_share"]
        )
        assert tables.frame("frames").empty
        (whole,) = tables.frame("runs").to_dict("records")
        (device,) = tables.frame("devices").to_dict("records")
        unknown = ["frames", "score", "uplink_bytes", "downlink_kbps", "energy_j", "updates", "weights_digest"]
        assert all(pd.isna(whole[name]) for name in unknown)
        assert all(pd.isna(device[name]) for name in ["frames", "processed", "busy_s", "energy_j", "uplink_bytes"])
        assert whole["student"] == "tiny"

    @pytest.mark.slow
    def test_a_device_too_small_for_its_application_is_reported_on_terminal_and_page(self, tmp_path, few_claims):
        document = several(apps=[]) | {"fleets": [{"name": "tiny", "devices": [{"memory_bytes": 1000}]}]}
        document["systems"] = [{"name": "shared", "base": "no_custom", "scheduling": "nestdnn"}]
        (tmp_path / "asked.yaml").write_text(yaml.safe_dump(document))
        words = ["run", str(tmp_path / "asked.yaml"), "--backend", "inline", "--out", str(tmp_path / "run")]
        done = run_command(words)
        message = (
            r"On both, segmentation never runs under shared: (its smallest network needs \d+ bytes, 1000 are free)\."
        )
        printed = re.search(message, done.stdout)
        assert printed
        assert printed[0] in (tmp_path / "run" / "report.html").read_text()
        tables = open_run(tmp_path / "run")
        assert set(tables.frame("shares")["note"]) == {f"waits: {printed[1]}"}
        assert tables.frame("runs")["score"].isna().all()
