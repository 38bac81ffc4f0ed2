"""The load of other programs in the loop: latency and work by closed forms, causal readings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_factory import FixedMember, ScriptedStreaming, begin, begin_real, rows
from processor_factory import job, make_processor, seconds

from driftlab.platform.core.records import LoadReading, Sensitivity, Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.lab.seal import run as run_experiment
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scheduling.base import (
    ALL_TRIGGERS,
    DEFAULT_TRIGGERS,
    Allocation,
    Grant,
    SchedulerInput,
    Scheduling,
)
from driftlab.platform.sim.runner import Runner
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.load import Load, LoadStep, speed_of, speed_of_network
from driftlab.platform.world.processor import task_end_s

VARIANTS = tuple(Variant(f"v{i}", 0.5 + 0.1 * i, 100 * (i + 1), 0.1 * (i + 1), 0.5) for i in range(4))
STEP = Load("step", (LoadStep(0.0, 0.0), LoadStep(12.25, 0.5, 0.25)))  # at full speed, then at 0.55


def loaded(loop: Runner, load: Load) -> Runner:
    """Put a device that has not started under a load."""
    for device in loop.devices.values():
        device.spec = replace(device.spec, load=load)
        device.sensor.load = load
    return loop


@settings(max_examples=40, deadline=None)
@given(
    alone_s=st.floats(0.001, 20),
    changes=st.lists(st.tuples(st.floats(0.01, 9), st.sampled_from([0.1, 0.5, 1.0]), st.booleans()), max_size=8),
)
def test_the_work_that_is_done_is_the_integral_of_share_and_speed(alone_s: float, changes: list[Any]):
    clock, processor, policy = make_processor(a=0.5)
    ends: dict[str, float] = {}
    clock.process(job(processor, "a", [seconds(alone_s)], ends))

    def change():
        for after_s, value, slows in changes:
            yield clock.timeout(after_s)
            if slows:
                processor.set_speed(value)
            policy.changed(processor, a=value)

    clock.process(change())
    clock.run(until=1e4)
    schedule = processor.share_schedule("a", 0, 1e4)
    stops = [*(time_s for time_s, _ in schedule[1:]), clock.now]
    done = sum((stop_s - start_s) * pace for (start_s, pace), stop_s in zip(schedule, stops, strict=True))
    assert task_end_s(0, alone_s, schedule) == pytest.approx(ends["a"])
    assert done == pytest.approx(alone_s, abs=1e-9)


def test_changes_of_share_and_speed_at_the_end_of_a_task_do_not_wake_its_process():
    clock, processor, policy = make_processor(a=0.5)
    ends: dict[str, float] = {}

    def work():
        yield from job(processor, "a", [seconds(1.0)], ends)
        yield clock.timeout(5.0)
        ends["after"] = clock.now

    def change():
        yield clock.timeout(2.0)
        processor.set_speed(0.5)
        policy.changed(processor, a=1.0)
        processor.set_speed(0.25)

    clock.process(change())
    clock.process(work())
    clock.run()
    assert ends == {"a": 2.0, "after": 7.0}


def test_the_latency_after_a_step_of_load_is_the_closed_form():
    loop = loaded(begin_real(Member("streaming", "local"), Member("adaptation", "frozen")), STEP)
    loop.run()
    frames = [
        (time_s, latency_ms)
        for chunk in loop.ledger.rows["frames"]
        for time_s, latency_ms in zip(chunk["time_s"], chunk["latency_ms"], strict=True)
    ]
    (alone_ms,) = {round(latency_ms, 9) for time_s, latency_ms in frames if time_s < 12}
    assert len(frames) == 40
    for time_s, latency_ms in frames:
        assert latency_ms == pytest.approx(alone_ms / speed_of(0.5 if time_s > 12.25 else 0.0))


def test_a_network_is_slowed_by_the_sensitivity_of_its_operators_too():
    sensitive = Sensitivity(cpu=0.4, memory=0.5)
    half = LoadStep(0.0, 0.5, memory=0.5, contention="operators")
    loop = begin_real(Member("streaming", "local"), Member("adaptation", "frozen"))
    loop = loaded(loop, Load("half", (half,)))
    for device in loop.devices.values():
        device.variants = {app: [replace(one, sensitivity=sensitive) for one in known]
                           for app, known in device.variants.items()}  # fmt: skip
    loop.run()
    idle = begin_real(Member("streaming", "local"), Member("adaptation", "frozen"))
    idle.run()
    (slow_ms, *_), (alone_ms, *_) = (one.ledger.rows["frames"][0]["latency_ms"] for one in (loop, idle))
    assert slow_ms == pytest.approx(alone_ms / speed_of_network(half, sensitive))
    assert speed_of_network(half, sensitive) == pytest.approx(0.55 / (1.2 * 1.25))


def test_inference_during_a_load_step_continues_more_slowly():
    step = Load("step", (LoadStep(0.0, 0.0), LoadStep(0.5 + 1e-4, 1.0)))
    loop = loaded(begin_real(Member("streaming", "local"), Member("adaptation", "frozen")), step)
    loop.run()
    before, met = (chunk for chunk in loop.ledger.rows["frames"][0]["latency_ms"][:2])
    assert met == pytest.approx(0.1 + (before - 0.1) / 0.1)


@pytest.mark.slow
def test_learning_on_the_device_takes_longer_by_the_same_law():
    streaming = Member("streaming", "local")
    adaptation = Member("adaptation", "tent")
    idle = begin_real(streaming, adaptation, duration_s=60.0)
    idle.run()
    half = loaded(begin_real(streaming, adaptation, duration_s=60.0), Load("half", (LoadStep(0.0, 0.5),)))
    half.run()
    (alone, *_), (slow, *_) = (rows(loop, "adaptations") for loop in (idle, half))
    assert slow["isolated_s"] == alone["isolated_s"]
    assert slow["end_s"] - slow["start_s"] == pytest.approx((alone["end_s"] - alone["start_s"]) / speed_of(0.5))


@dataclass(frozen=True)
class BudgetRecorder:
    """A scaling member that records its budgets, and chooses the network that the last reading allows."""

    asked: list[Budget] = field(default_factory=list)
    uses_true_load: bool = False
    nested = cuts_per_domain = False
    chooser, predictor = "own", "law"

    def select_variant(self, variants, budget, state=None):
        self.asked.append(budget)
        return (0 if budget.load and budget.load[-1].cpu > 0.25 else 3), budget.now_s

    def forecast(self, state):
        return state / 1e3


def many(
    load: Load | None,
    scheduling: Any = Member("scheduling", "uniform"),
    *,
    uses_true_load: bool = False,
    **setting: Any,
) -> tuple[Runner, BudgetRecorder]:
    """Run four measured networks under a load, without computing them."""
    scaling = BudgetRecorder(uses_true_load=uses_true_load)
    setting["bound"] = setting.get("bound", "true_load" if uses_true_load else None)
    return chosen_by(scaling, load, scheduling, **setting), scaling


def chosen_by(
    scaling: Any, load: Load | None, scheduling: Any = Member("scheduling", "uniform"), **setting: Any
) -> Runner:
    """Run four measured networks, of which a scaling member chooses one."""
    _, loop = begin(
        ScriptedStreaming(), measured=VARIANTS, run_networks=False, fps=10.0, scheduling=scheduling, **setting
    )
    loop.scaling = scaling
    if load is not None:
        loaded(loop, load)
    loop.run()
    return loop


def test_scaling_is_called_at_every_reading_and_switches_between_windows():
    loop, scaling = many(STEP)
    assert [budget.now_s for budget in scaling.asked] == [k / 2 for k in range(60)]
    assert [budget.load[-1].time_s for budget in scaling.asked] == [k / 2 for k in range(60)]
    assert {budget.memory_bytes for budget in scaling.asked[:25]} == {8_000_000_000}
    assert scaling.asked[-1].memory_bytes == 6_000_000_000
    found = [(row["time_s"], row["window_s"], row["variant"]) for row in rows(loop, "shares")]
    assert found == [(0.0, 10.0, 3), (10.0, 3.0, 3), (13.0, 7.0, 0), (20.0, 10.0, 0)]
    assert rows(loop, "shares")[2]["paged_in_bytes"] == 100
    assert rows(loop, "shares")[1]["latency_ms"] == pytest.approx(400 / (1 - 0.45 * 0.75 / 3))
    assert rows(loop, "shares")[1]["energy_j"] == pytest.approx(0.5 * 3 * (1 - 0.45 * 0.75 / 3) / 0.4)
    assert {budget.coming for budget in scaling.asked} == {None}
    readings = rows(loop, "loads")
    assert [row["variant"] for row in readings] == [3] * 26 + [0] * 34
    assert [row["cpu"] for row in readings[23:27]] == pytest.approx([0.0, 0.25, 0.5, 0.5])
    assert [row["sensed_cpu"] for row in readings[23:27]] == pytest.approx([0.0, 0.0, 0.25, 0.5])
    assert [row["forecast_cpu"] for row in readings] == pytest.approx([k / 2e3 for k in range(60)])


def test_the_goals_of_an_application_reach_scaling():
    app = AppGoals("segmentation", 10.0, accuracy_goal=0.5, latency_goal_s=0.05, energy_goal_j=0.2)
    _, scaling = many(STEP, events=(Event(0.0, "start", app),))
    assert {(budget.accuracy, budget.latency_s, budget.energy_j) for budget in scaling.asked} == {(0.5, 0.05, 0.2)}


def test_a_bound_receives_the_load_until_the_next_reading():
    _, scaling = many(STEP, uses_true_load=True)
    coming = [(budget.now_s, budget.coming.cpu, budget.load[-1].cpu) for budget in scaling.asked[23:27]]
    assert coming == [(11.5, 0.0, 0.0), (12.0, 0.25, 0.0), (12.5, 0.5, 0.25), (13.0, 0.5, 0.5)]
    fixed = Member("scaling", "fixed").make()
    budget = replace(scaling.asked[24], latency_s=0.31, memory_bytes=None)
    assert fixed.select_variant(VARIANTS, budget)[0] == 1  # 0.2 s at the speed of 0.775; 0.3 s would be too late
    assert fixed.select_variant(VARIANTS, replace(budget, coming=None))[0] == 2


def test_adascale_predicts_from_the_cpu_load_or_from_the_load_index():
    """Programs that use memory and no CPU cause no slowdown; only the index counts them as load."""
    app = AppGoals("segmentation", 2.0, latency_goal_s=0.35)
    held = Load("held", (LoadStep(0.0, 0.0, 0.0), LoadStep(12.25, 0.0, 0.8)))
    chosen = {}
    for measure, weights in (("cpu", {}), ("index", {}), ("index", {"memory_weight": 0.0})):
        member = AdaScale(accuracy_loss=1.0, load_measure=measure, **weights)
        readings = rows(chosen_by(member, held, events=(Event(0.0, "start", app),)), "loads")
        assert [row["speed"] for row in readings] == pytest.approx([1.0] * 60)
        expected = 0.25 * 0.8 if measure == "index" and not weights else 0.0
        assert [row["forecast_cpu"] for row in readings] == pytest.approx([0.0] * 25 + [expected] * 35)
        chosen[measure, bool(weights)] = [row["variant"] for row in readings]
    assert chosen["cpu", False] == chosen["index", True] == [2] * 60
    assert chosen["index", False] == [2] * 25 + [1] * 35  # 0.3 s is taken for 0.366 s


def test_without_a_load_scaling_is_called_per_window_without_readings():
    loop, scaling = many(None)
    assert [(budget.now_s, budget.load) for budget in scaling.asked] == [(0.0, ()), (10.0, ()), (20.0, ())]
    assert "loads" not in loop.ledger.rows


@dataclass
class WindowRecorder(Scheduling):
    """A scheduler that records its windows."""

    triggers: frozenset[Any]  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.asked: list[SchedulerInput] = []

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        return Allocation(tuple(Grant(1.0, variant=0) for _ in window.demands))


def test_a_scheduler_is_called_at_readings_on_request_and_receives_no_later_ones():
    seen = {}
    for name, triggers in (("wants", ALL_TRIGGERS), ("does not", DEFAULT_TRIGGERS)):
        scheduler = WindowRecorder(triggers)
        many(STEP, FixedMember(scheduler, "uniform", "scheduling"))
        seen[name] = scheduler.asked
    assert [window.start_s for window in seen["does not"]] == [0.0, 10.0, 20.0]
    assert [window.start_s for window in seen["wants"]] == [k / 2 for k in range(60)]
    assert {window.reason for window in seen["wants"]} == {"window", "load"}
    for window in (*seen["wants"], *seen["does not"]):
        assert [one.time_s for one in window.load] == [k / 2 for k in range(int(2 * window.start_s) + 1)]
    future = Load("poison", (STEP.steps[0], LoadStep(12.25, 1.0, 1.0, 0.5)))
    scheduler = WindowRecorder(ALL_TRIGGERS)
    many(future, FixedMember(scheduler, "uniform", "scheduling"))
    same = [one for one in scheduler.asked if one.start_s <= 12]
    assert same == seen["wants"][: len(same)]
    assert seen["wants"][25].load[-1] == LoadReading(12.5, 0.25, 6_000_000_000, memory=0.25)
    assert scheduler.asked[25].load[-1] == LoadReading(12.5, 0.5, 0, 0.5, memory=1.0)
    assert [one.memory_bytes for one in scheduler.asked[24:26]] == [8_000_000_000, 0]


def test_an_empty_battery_stops_the_device_for_good():
    low = Load("low", tuple(LoadStep(float(k), 0.1, battery=max(0.0, 1 - k / 14)) for k in range(30)))
    loop, _ = many(low)
    readings = rows(loop, "loads")
    assert readings[-1]["time_s"] == 14.5  # the queue of the time until 14 s is not yet empty
    assert "battery is empty" in readings[-1]["note"]
    assert {row["note"] for row in readings[:-1]} == {None}
    assert sum(row["window_s"] for row in rows(loop, "shares")) == 14.5
    live = loaded(begin_real(Member("streaming", "local"), Member("adaptation", "frozen")), low)
    live.run()
    assert sum(len(chunk["time_s"]) for chunk in live.ledger.rows["frames"]) == 29


def experiment(load: Any) -> dict[str, Any]:
    return {
        "name": "loads",
        "systems": ["no_custom"],
        "bounds": False,
        "workloads": [{"name": "signs/town", "duration_s": 6.0, "fps": 2.0, "height": 32, "width": 32}],
        "fleets": [{"devices": [{"hardware": "raspberry-pi-4", "load": load}]}],
        "student": {"network": "tiny_classifier", "pretrain_steps": 0},
        "window_s": 2.0,
    }


@pytest.mark.slow
def test_tables_without_load_equal_those_of_an_empty_load(tmp_path: Path):
    runs = {}
    for name, load in (("idle", "idle"), ("free", {"file": str(tmp_path / "zero.csv")}), ("user", "user")):
        (tmp_path / "zero.csv").write_text("time_s,cpu\n0,0\n3,0\n")
        runs[name] = run_experiment(experiment(load), out=tmp_path / name)
    loads = {name: open_run(tmp_path / name).table("loads").num_rows for name in runs}
    assert loads == {"idle": 0, "free": 12, "user": 12}
    for table in ("runs", "frames", "devices", "shares"):
        idle, free, user = (open_run(tmp_path / name).frame(table).filter(regex="^(?!host_)") for name in runs)
        assert idle.equals(free)
        assert table in ("runs", "devices") or not idle.equals(user)
