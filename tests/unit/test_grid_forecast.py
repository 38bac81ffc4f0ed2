"""The forecast of a run: counted by hand for each kind of training, and updated during the run."""

from __future__ import annotations

import dataclasses

import pytest

from driftlab.cli.progress import TimeLeft
from driftlab.platform.core.registry import Member
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab import forecast as forecasts
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.forecast import ComputeEstimates, Meter, forecast, meters_of
from driftlab.platform.lab.network_time import reference, time_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Choice, load, parse
from driftlab.platform.lab.size import size_of
from driftlab.platform.networks.training import artifacts
from driftlab.platform.sim.setting import StreamSpec

PIXELS = 32 * 48
TINY = reference(PIXELS)
FRAME_S = forecasts.SHOWN_S + forecasts.SHOWN_PX_S * PIXELS + TINY.frame_s
STREAM = StreamSpec("streets/running", 0, 32, 48, 2.0, 60.0)
DOCUMENT = {
    "name": "asked",
    "systems": ["no_custom", "ams"],
    "bounds": False,
    "seeds": [0, 1],
    "workloads": [{"name": "streets/running", "duration_s": 60.0, "fps": 2.0, "height": 32, "width": 48}],
    "fleets": [{"name": "three", "devices": [{"count": 3}]}],
}


def estimate_of(system: System):
    (found,) = ComputeEstimates(10.0).of(system, [STREAM], run_networks=True)
    return found


def passes(system: System) -> list[tuple[float, float]]:
    one_s = TINY.training_s(1, forecasts._batch_of(system.adaptation))
    return [(at_s, spent / one_s) for at_s, spent in estimate_of(system).learning]


def test_large_images_take_longer_to_predict():
    large = dataclasses.replace(STREAM, height=64, width=96)
    (found,) = ComputeEstimates(10.0).of(SYSTEMS["no_custom"], [large], run_networks=True)
    assert found.until(60.0) > 2 * 120 * FRAME_S


def test_larger_networks_take_longer_to_predict_and_to_train():
    heavy = dataclasses.replace(TINY, image_s=3 * TINY.image_s, frame_s=2 * TINY.frame_s)
    (small,), (large,) = (
        ComputeEstimates(10.0).of(SYSTEMS["ams"], [STREAM], run_networks=True, networks=[one]) for one in (TINY, heavy)
    )
    assert large.per_second - small.per_second == pytest.approx(STREAM.fps * TINY.frame_s)
    (_, less_s), (_, more_s) = small.learning[0], large.learning[0]
    assert more_s - less_s == pytest.approx(240 * 2 * TINY.image_s)


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), OverflowError("x")])
def test_a_member_that_ends_the_process_is_left_to_its_cell(monkeypatch, raised):
    def end(*_):
        raise raised

    monkeypatch.setattr("driftlab.platform.streaming.ams.Ams.plan_uplink", end)
    assert passes(SYSTEMS["ams"]) == []


def test_without_networks_a_window_takes_time_and_a_plan_more():
    equal, planned = (
        ComputeEstimates(10.0).of(SYSTEMS[name], [STREAM, STREAM], run_networks=False)
        for name in ("no_custom", "nestdnn")
    )
    assert [one.until(60.0) for one in equal] == [pytest.approx(6 * forecasts.WINDOW_S)]
    assert [one.until(60.0) for one in planned] == [pytest.approx(6 * (forecasts.WINDOW_S + forecasts.PLAN_S))]


def test_phases_are_those_that_the_streaming_member_plans():
    assert passes(SYSTEMS["ams"]) == [(at_s, pytest.approx(60 * 4)) for at_s in (10.0, 20.0, 30.0, 40.0, 50.0)]
    assert passes(SYSTEMS["best_static"]) == [(0.0, pytest.approx(300 * 4))]
    every = Member("streaming", "one_time", (("sample_s", 20.0), ("iterations", 7)))
    assert passes(System("once", "", every, Member("adaptation", "distill"))) == [(20.0, pytest.approx(7 * 4))]


def test_on_the_stream_every_batch_is_trained_on():
    adaptation = Member("adaptation", "onda", (("stream_batch", 40),))
    found = passes(System("onda", "", adaptation=adaptation))
    assert found == [(at_s, pytest.approx(40 * forecasts.FORWARD_SHARE)) for at_s in (0.0, 20.0, 40.0)]


def test_a_member_whose_phases_fail_is_estimated_without_training(monkeypatch):
    def refuse(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(forecasts, "_phases", refuse)
    assert passes(SYSTEMS["ams"]) == []


def test_a_meter_reports_all_work_at_its_time():
    cell = next(cell for cell in cells_of(parse(DOCUMENT)) if cell.system.name == "ams")
    reports = []
    meter = Meter(
        cell,
        ComputeEstimates(30.0).of(cell.system, [cell.devices[0].apps[0].stream], run_networks=True),
        reports.append,
    )
    meter(3 * 30.0)
    meter(3 * 30.0)
    phase_s = TINY.training_s(240, forecasts._batch_of(cell.system.adaptation))
    assert reports == [pytest.approx(3 * (60 * FRAME_S + 2 * phase_s)), pytest.approx(3 * (60 * FRAME_S + 3 * phase_s))]
    assert sum(reports) == pytest.approx(meter.whole_s)


@pytest.mark.slow
def test_the_whole_is_the_sum_of_the_cells(monkeypatch, tmp_path):
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path))
    experiment = parse(DOCUMENT)
    found = forecast(experiment)
    meters = meters_of(experiment, cells_of(experiment), Progress())
    assert len(meters) == 4
    work_s = sum(meter.whole_s for meter in meters.values())
    assert found.cells_s == pytest.approx(work_s + 4 * forecasts.CELL_S, rel=0.05)  # of `tiny`
    assert (found.frames, found.to_build, found.kept) == (4 * 3 * 120, 1, 0)
    (recipe,) = forecasts.recipes_of(experiment).values()
    drawn_s = forecasts.RENDERED_FRAMES * forecasts.DRAWN_S
    trained_s = time_of(recipe.network).training_s(2500 * 4, 4)
    assert found.building_s == pytest.approx(forecasts.NETWORK_S + drawn_s + trained_s)
    (tmp_path / f"tiny-{recipe.network.key()}.safetensors").touch()
    assert (forecast(experiment).to_build, forecast(experiment).kept) == (0, 1)
    monkeypatch.setattr(forecasts, "slowness", lambda: 1.0)
    one, two = (found.on_this_host_s(cores, 4) - forecasts.START_S - found.building_s for cores in (1, 2))
    assert one == pytest.approx(2 * two)


def test_a_network_is_trained_once_for_all_of_its_families(monkeypatch, tmp_path):
    """Three families of each application begin from one network, and train no epoch."""
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path))
    experiment = load("nestdnn-fig3", choice=Choice(("trr-0", "trr-1", "l1-0")))
    recipes = list(forecasts.recipes_of(experiment).values())
    networks = {recipe.network.key(): recipe.network for recipe in recipes}
    assert (len(recipes), len(networks)) == (18, 6)
    trained_s = sum(map(forecasts._network_s, networks.values()))
    assert forecast(experiment).building_s == pytest.approx(trained_s + 18 * forecasts.FAMILY_S)
    for one in networks.values():
        (tmp_path / f"{one.network}-{one.key()}.safetensors").touch()
    assert forecast(experiment).building_s == pytest.approx(18 * forecasts.FAMILY_S)


def test_epochs_of_a_family_take_time(monkeypatch, tmp_path):
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path))
    some = next(iter(forecasts.recipes_of(load("nestdnn-fig3", choice=Choice(("trr-0",)))).values()))
    seconds = {}
    for epochs in (0, 2, 4):
        member = Member("scaling", "nested", (("prune_epochs", epochs), ("grow_epochs", 0)))
        seconds[epochs] = forecasts._family_s(dataclasses.replace(some, scaling=member))
    assert seconds[0] == forecasts.FAMILY_S
    assert seconds[4] - seconds[2] == pytest.approx(seconds[2] - seconds[0])
    assert seconds[2] > seconds[0]
    assert forecasts._family_s(dataclasses.replace(some, scaling=Member("scaling", "fixed"))) == 0


def test_the_pace_leaves_the_start_of_workers_out():
    pace = TimeLeft(100.0)
    for now_s, work in ((30.0, 2.0), (31.0, 2.0)):  # half a minute before anything was reported
        pace.advanced(work, now_s)
        assert pace.left_s is None  # too few rows for an estimate
    pace.advanced(8.0, 35.0)
    assert pace.left_s == pytest.approx(5.0 * 88 / 10)
    pace.advanced(88.0, 80.0)
    assert pace.left_s is None
    assert pace.share == 1.0


@pytest.mark.parametrize(
    ("network", "stream", "devices", "measured_gb"),
    [("tiny", "streets/running", 1000, 1.81), ("wide_classifier", "signs/seasons", 60, 1.36)],
)
def test_the_memory_of_a_fleet_is_that_of_its_networks(network, stream, devices, measured_gb):
    """The measured memory is that of one process in which AMS has trained most devices."""
    changes = {"fleets": [{"name": "many", "devices": [{"count": devices}]}], "student": {"network": network}}
    spec = parse(
        {**DOCUMENT, **changes, "systems": ["ams"], "workloads": [{**DOCUMENT["workloads"][0], "name": stream}]}
    )
    assert 0.5 < size_of(spec).memory_bytes / 1e9 / measured_gb < 2
