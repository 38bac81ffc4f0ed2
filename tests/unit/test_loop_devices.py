"""Many applications on one device: who runs when, on what share, with which network."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from driftlab.cli.app import build_app
from driftlab.errors import RequestError
from driftlab.platform.core.records import Variant
from driftlab.platform.lab.cells import AppSpec, DeviceSpec, cells_of
from driftlab.platform.lab.experiment import parse
from driftlab.platform.lab.inline import InlineBackend
from driftlab.platform.lab.run import run
from driftlab.platform.loop.device_run import DeviceRun
from driftlab.platform.nodes.specs import StreamSpec
from driftlab.platform.results.read import open_run
from driftlab.platform.results.report import write_report
from driftlab.platform.scheduling.base import Allocation, Scheduling, Window
from driftlab.platform.world import hardware, link
from driftlab.platform.world.apps import App, Event

STREAM = StreamSpec("streets/running", 0, 32, 48, 2.0, 30.0)
SIZES = (100, 300)
VARIANTS = tuple(Variant(f"v{i}", 0.5 + 0.2 * i, size, 0.01 * (i + 1), 0.5) for i, size in enumerate(SIZES))


@dataclass
class Scripted(Scheduling):
    """Answers as it is told, and remembers what it was asked."""

    answers: list[Allocation]

    def __post_init__(self) -> None:
        self.asked: list[Window] = []

    def allocate(self, window: Window) -> Allocation:
        self.asked.append(window)
        return self.answers[len(self.asked) - 1]


def host(*names: str, events: tuple[Event, ...] | None = None, nested: bool = False) -> DeviceRun:
    tenants = tuple(AppSpec(App(name, priority=2.0), STREAM) for name in names)
    spec = DeviceSpec("d", hardware.find("phone-hi"), link.LINKS["lte"], tenants, events)
    edges: Any = {name: SimpleNamespace(app=name) for name in names}
    return DeviceRun(spec, edges, dict.fromkeys(names, VARIANTS), nested)


class TestGrants:
    def test_a_scheduler_hears_of_everyone_and_of_its_own_last_word(self):
        asked = Scripted([Allocation((0.25, 0.75), (0, 1), state="kept"), Allocation((1.0, 0.0), (1, None))])
        device = host("a", "b")
        device.grant(asked, 0.0, 5.0)
        device.grant(asked, 5.0, 5.0)
        first, second = asked.asked
        assert (first.state, second.state) == (None, "kept")
        assert [demand.app for demand in first.demands] == ["a", "b"]
        assert [demand.running for demand in first.demands] == [None, None]
        assert [demand.running for demand in second.demands] == [0, 1]
        assert second.demands[0].priority == 2.0
        assert second.memory_bytes == hardware.find("phone-hi").memory_bytes

    @pytest.mark.parametrize(("nested", "up", "down"), [(False, (300, 100), (100, 300)), (True, (200, 0), (0, 200))])
    def test_a_switch_moves_everything_or_the_difference(self, nested, up, down):
        asked = Scripted([Allocation((1.0,), (variant,)) for variant in (0, 1, 1, 0)])
        device = host("a", nested=nested)
        moved = [device.grant(asked, 5.0 * k, 5.0)[0].moved_bytes for k in range(4)]
        assert moved == [(100, 0), up, (0, 0), down]

    def test_everyone_hears_what_concerns_it(self):
        device = host("a", "b")
        asked = Scripted(
            [Allocation((1.0, 0.0), (0, None), ("", "waits: b is too big")), Allocation((0.5, 0.5), (0, 0))]
        )
        notes = [[grant.note for grant in device.grant(asked, 5.0 * k, 5.0)] for k in range(2)]
        assert notes == [["", "waits: b is too big"], ["", ""]]

    def test_who_waits_makes_room_and_is_loaded_again(self):
        asked = Scripted([Allocation((1.0,), (1,)), Allocation((0.0,), (None,)), Allocation((1.0,), (1,))])
        device = host("a")
        grants = [device.grant(asked, 5.0 * k, 5.0)[0] for k in range(3)]
        assert [grant.moved_bytes for grant in grants] == [(300, 0), (0, 300), (300, 0)]
        assert [grant.network and grant.network.name for grant in grants] == ["v1", None, "v1"]
        assert [window.demands[0].running for window in asked.asked] == [None, 1, None]

    def test_who_is_gone_leaves_memory_and_comes_back_to_none(self):
        app = App("a")
        events = (Event(0.0, "start", app), Event(0.0, "start", App("b")), Event(5.0, "stop", app))
        events += (Event(10.0, "start", replace(app, priority=4.0)),)
        device = host("a", "b", events=events)
        asked = Scripted(
            [Allocation((0.5, 0.5), (1, 0)), Allocation((1.0,), (0,)), Allocation((0.5, 0.5), (0, 1))],
        )
        names = [[grant.demand.app for grant in device.grant(asked, 5.0 * k, 5.0)] for k in range(3)]
        assert names == [["a", "b"], ["b"], ["b", "a"]]
        assert asked.asked[2].demands[1].running is None
        assert asked.asked[2].demands[1].priority == 4.0

    def test_where_scaling_chooses_the_only_network_is_known(self):
        asked = Scripted([Allocation((1.0,))] * 2)
        device = host("a")
        assert device.grant(asked, 0.0, 5.0)[0].network is None
        device.variants = {"a": VARIANTS[:1]}
        assert device.grant(asked, 5.0, 5.0)[0].network == VARIANTS[0]

    def test_how_long_the_scheduler_took_is_measured(self):
        class Slow(Scripted):
            def allocate(self, window: Window) -> Allocation:
                until_s = time.thread_time() + 0.02
                while time.thread_time() < until_s:
                    pass
                time.sleep(0.1)  # does not count
                return super().allocate(window)

        grants = host("a", "b").grant(Slow([Allocation((0.5, 0.5))]), 0.0, 5.0)
        assert {0.02 <= grant.host_seconds < 0.1 for grant in grants} == {True}


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
    def test_applications_that_watch_one_place_see_the_same(self):
        (cell,) = cells_of(parse(several()))
        (device,) = cell.devices
        assert [tenant.app.name for tenant in device.tenants] == ["scene", "cars"]
        assert device.tenants[0].stream == device.tenants[1].stream

    def test_an_application_is_called_by_its_device_and_beside_others_by_both(self):
        (cell,) = cells_of(parse(several()))
        (device,) = cell.devices
        assert [device.name_of(tenant) for tenant in device.tenants] == ["device-0000/scene", "device-0000/cars"]
        alone = replace(device, tenants=device.tenants[:1])
        assert alone.name_of(alone.tenants[0]) == "device-0000"

    def test_visitors_are_the_same_for_every_system_and_differ_by_device_and_seed(self):
        churn = {"tick_s": 1.0, "least": 1, "start": 0.4, "stop": 0.4}
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
        ("change", "said"),
        [
            ({"apps": [{"name": "a"}, {"name": "a"}]}, "apps names a twice"),
            ({"apps": [{"name": "a", "network": "tyni"}]}, "Unknown network 'tyni'"),
            ({"apps": [{"name": "a", "watches": "streets/runing"}]}, "Did you mean 'streets/running'"),
            ({"apps": [{"name": "a", "variants": "nowhere.csv"}]}, "nowhere.csv"),
            ({"churn": {"least": 5}}, "at least 5 applications"),
            ({"churn": {"lest": 1}}, "lest"),
        ],
    )
    def test_what_is_wrong_is_said(self, change, said):
        with pytest.raises(RequestError, match=said):
            parse(several(**change))

    def test_networks_that_are_only_known_by_measurements_cannot_run_live(self, tmp_path):
        measured = tmp_path / "measured.csv"
        measured.write_text("variant,accuracy,latency_ms\nsmall,0.7,10\nlarge,0.9,40\n")
        apps = [{"name": "a"}, {"name": "b", "variants": str(measured)}]
        with pytest.raises(RequestError, match=r"workloads.0.apps.1.variants: .* set live: false") as refused:
            parse(several(apps=apps))
        assert "1 fault\n" in str(refused.value)
        assert parse(several(apps=apps, live=False))


class TestRuns:
    def test_each_application_sends_learns_and_is_scored_by_itself(self, tmp_path):
        outcome = run(several(), out=tmp_path / "run", open_backend=InlineBackend)
        assert not outcome.failed
        tables = open_run(outcome.directory)
        assert set(tables.frame("frames")["app"]) == set(tables.frame("updates")["app"]) == {"scene", "cars"}
        shares = tables.frame("shares")
        assert shares["share"].tolist() == [0.5] * 8
        assert shares["network"].tolist() == ["tiny", "tiny_detector"] * 4
        (whole,) = tables.frame("runs").to_dict("records")
        assert whole["frames"] == 2 * 40
        assert whole["student"] == "tiny, tiny_detector"
        messages = tables.frame("transfers").query("direction == 'up'")
        for _, sent in messages.groupby("app"):
            assert sent["sequence"].tolist() == list(range(1, len(sent) + 1))
        assert set(messages["app"]) == {"scene", "cars"}

    @pytest.mark.parametrize("live", [True, False])
    def test_on_a_device_where_nobody_ever_comes_nothing_runs(self, tmp_path, live):
        document = several(churn={"least": 0, "start": 0, "stop": 1}, live=live, duration_s=5)
        outcome = run(document, out=tmp_path / "run", open_backend=InlineBackend)
        assert not outcome.failed
        assert write_report(outcome.directory).exists()
        tables = open_run(outcome.directory)
        assert all(tables.frame(name).empty for name in ("shares", "frames", "transfers", "updates"))
        (whole,) = tables.frame("runs").to_dict("records")
        assert whole["frames"] == 0 if live else pd.isna(whole["frames"])
        assert pd.isna(whole["score"])

    def test_applications_that_only_get_shares_run_nothing(self, tmp_path):
        measured = tmp_path / "measured.csv"
        measured.write_text("variant,accuracy,latency_ms,memory_mb\nsmall,0.7,10,1\nlarge,0.9,40,4\n")
        apps = [{"name": name, "variants": str(measured), "latency_goal_s": 0.1} for name in "abc"]
        document = several(apps=apps, live=False, churn={"least": 1, "start": 0.3, "stop": 0.3})
        document["systems"] = [{"name": "shared", "base": "no_custom", "scheduling": "nestdnn"}]
        tables = open_run(run(document | {"window_s": 1}, out=tmp_path / "run", open_backend=InlineBackend).directory)
        shares = tables.frame("shares")
        assert shares.groupby("time_s")["share"].sum().to_numpy() == pytest.approx(1.0)
        assert set(shares["network"]) <= {"small", "large"}
        could = tables.frame("variants")
        assert could[["app", "network", "accuracy", "memory_bytes"]].to_numpy().tolist() == [
            [app, *one] for app in "abc" for one in (["small", 0.7, 10**6], ["large", 0.9, 4 * 10**6])
        ]
        assert shares["latency_ms"].to_numpy() == pytest.approx(
            shares["network"].map({"small": 10, "large": 40}) / shares["share"]
        )
        assert tables.frame("frames").empty
        (whole,) = tables.frame("runs").to_dict("records")
        (device,) = tables.frame("devices").to_dict("records")
        unknown = ["frames", "score", "uplink_bytes", "downlink_kbps", "energy_j", "updates", "weights_digest"]
        assert all(pd.isna(whole[name]) for name in unknown)
        assert all(pd.isna(device[name]) for name in ["frames", "processed", "busy_s", "energy_j", "uplink_bytes"])
        assert whole["student"] == "tiny"

    def test_a_device_too_small_for_its_only_application_is_told_on_the_terminal_and_in_the_report(self, tmp_path):
        document = several(apps=[]) | {"fleets": [{"name": "tiny", "devices": [{"memory_bytes": 1000}]}]}
        document["systems"] = [{"name": "shared", "base": "no_custom", "scheduling": "nestdnn"}]
        (tmp_path / "asked.yaml").write_text(yaml.safe_dump(document))
        words = ["run", str(tmp_path / "asked.yaml"), "--backend", "inline", "--out", str(tmp_path / "run")]
        done = CliRunner().invoke(build_app(), words)
        said = r"On both, segmentation never runs under shared: (its smallest network needs \d+ bytes, 1000 are free)\."
        told = re.search(said, done.stdout)
        assert told
        assert told[0] in (tmp_path / "run" / "report.html").read_text()
        tables = open_run(tmp_path / "run")
        assert set(tables.frame("shares")["note"]) == {f"waits: {told[1]}"}
        assert tables.frame("runs")["score"].isna().all()
