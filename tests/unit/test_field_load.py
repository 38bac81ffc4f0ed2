"""A real device under load: readings, choices by measured times, switches between two frames."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from statistics import median

import pytest
from command_factory import run_command

from driftlab.cli.field import _line
from driftlab.errors import RequestError, WireError
from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.field.agent import Agent, DeviceReport
from driftlab.platform.field.load_follower import HostSensor, NetworkTimes
from driftlab.platform.field.messages import MAX_REPORT_BYTES, MAX_SWITCHES, DeviceStatus, decode_status
from driftlab.platform.field.network_cache import FOLDER
from driftlab.platform.field.opening import dump_weights
from driftlab.platform.field.recording import CpuTimes, HostSample, parse_stat
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.field.ticket import Ticket
from driftlab.platform.world.load import speed_of
from driftlab.serve_apps.timeline import Timeline

SIZE, FPS, DURATION_S = (96, 128), 8, 4.5
SYSTEM = {"name": "follow", "base": "adascale", "scaling": {"name": "adascale", "exits": 2}}
ASKED = {
    "system": SYSTEM,
    "workload": {"name": "signs/depot", "duration_s": DURATION_S, "fps": FPS, "height": SIZE[0], "width": SIZE[1]},
    "student": {"network": "staged", "pretrain_steps": 0},
    "goals": {"accuracy": 0.1},
}
QUIET, LOADED, BURNERS = 3, 5, 1  # readings before and under the load, and processes that share the core
GOAL = 1.5  # over the median latency before the load
BURN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
sys.stdin.readline()
until = time.monotonic() + 10
while time.monotonic() < until:
    pass
"""


class Burners:
    """Processes that burn one core together, for at most ten seconds each."""

    def __init__(self, core):
        command = [sys.executable, "-S", "-c", BURN, str(core)]
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [subprocess.Popen(command, **pipe) for _ in range(BURNERS)]
        for one in self.processes:
            one.stdout.readline()

    def start(self):
        for one in self.processes:
            one.stdin.write("\n")
            one.stdin.flush()

    def stop(self):
        for one in self.processes:
            one.kill()
            one.communicate()


def make_agent(folder):
    """Return a resumed device with untrained networks on its disk, whose server is away.

    The whole network is the most accurate, and all other paths are equal: under load the fastest fits best.
    """
    from driftlab.platform.networks.architectures import build
    from driftlab.platform.networks.spaces import SPACES
    from driftlab.platform.scaling.adascale import AdaScale
    from driftlab.platform.scaling.branches import PathFamily, branch_model

    classes, member = 8, AdaScale(exits=2)
    branched = branch_model(build("staged", classes, seed=0, size=SIZE).eval(), SIZE, SPACES["tiny"], 2)
    accuracies = (*[0.5] * (len(branched.space) - 1), 0.9)
    (folder / FOLDER).mkdir()
    weights = dump_weights(member.store(PathFamily(branched, accuracies, accuracies)))
    (folder / FOLDER / "weights").write_bytes(weights)
    return Agent(Ticket(server="http://127.0.0.1:9", id="a", token="b", asked=ASKED), folder)


@pytest.fixture
def one_core():
    """Restrict this thread to one core, and return the core."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processes cannot be bound to a core here")
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core: no other is left for the programs that are not part of the test")
    core = max(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


@pytest.mark.slow
def test_a_device_under_a_real_load_regains_its_goal_within_two_readings_and_drops_no_frame(one_core, tmp_path):
    agent, burners, seen, goal = make_agent(tmp_path), Burners(one_core), [], []
    device, app = agent.cell.device, agent.cell.app

    def follow(report):
        readings = len(device.sensor.taken)
        seen.append((*agent.recent[-1], app.choice.runs, readings))
        if readings == QUIET and not goal:
            goal.append((GOAL * median(latency_s for _, latency_s in agent.recent), agent.now()))
            device.present = (replace(device.present[0], latency_goal_s=goal[0][0]),)
            burners.start()
        if readings == QUIET + LOADED:
            burners.stop()

    try:
        agent.begin(tmp_path)
        agent.run(follow, every_s=0.0)
    finally:
        burners.stop()
    loads = [{name: values[0] for name, values in row.items()} for row in agent.cell.runner.ledger.rows["loads"]]
    frames = agent.cell.runner.ledger.rows["frames"]
    columns = {
        name: [value for part in frames for value in part[name]] for name in ("frame", "processed", "latency_ms")
    }
    assert columns["frame"] == list(range(int(DURATION_S * FPS)))
    for place, processed in enumerate(columns["processed"]):
        if not processed:  # it arrived during the inference of a frame before it
            before = max(other for other in range(place) if columns["processed"][other])
            assert columns["latency_ms"][before] > (place - before) * 1e3 / FPS - 1
    whole = len(agent.load.times.idle) - 1
    assert loads[0]["variant"] == whole
    if not goal or any(runs != whole for time_s, _, runs, _ in seen if time_s <= goal[0][1]):
        pytest.skip(f"core {one_core} is busy before the load begins: {seen}")
    goal_s, started_s = goal[0]
    loaded = [one for one in seen if one[0] > started_s and one[3] <= QUIET + LOADED]
    medians_s = {
        number: median(latency_s for _, latency_s, _, readings in loaded if readings == number)
        for number in sorted({one[3] for one in loaded})
    }
    late = next((number for number, latency_s in medians_s.items() if latency_s > goal_s), None)
    if late is None or late + 2 >= QUIET + LOADED:
        pytest.skip(f"the load cannot be seen on core {one_core}, which other programs use as well: {loaded}")
    runs = [one[2] for one in loaded if one[3] >= late + 2]
    assert whole not in runs
    assert set(runs) <= {row["variant"] for row in loads}
    fastest = min(range(whole + 1), key=lambda which: agent.load.times.idle[which].latency_s)
    regained_s = median(latency_s for _, latency_s, _, readings in loaded if readings >= late + 2)
    if regained_s > goal_s and set(runs) == {fastest}:
        pytest.skip(f"other programs leave too little of core {one_core} for any network: {loaded}")
    assert regained_s <= goal_s
    under = [row for row in loads if started_s + 0.6 < row["time_s"] < started_s + 0.5 * LOADED]
    assert min(row["sensed_cpu"] for row in under) > 0.3
    assert agent.switches == []  # all reported


def test_a_sensor_subtracts_the_time_of_its_own_process(monkeypatch):
    monkeypatch.setattr("driftlab.platform.field.load_follower.cores_here", lambda: frozenset({0, 3}))
    times = iter([CpuTimes(0, 0), CpuTimes(100, 400), CpuTimes(100, 400)])
    own_s, now_s = iter([1.0, 1.5, 1.6]), iter([10.0, 12.0, 12.0])

    class Source:
        def sample(self):
            return HostSample(next(times), 0.25, 0.8, 40.0, 0.5, 0.1)

    sensor = HostSensor(1000, Source(), own_s.__next__, now_s.__next__)
    expected = LoadReading(2.0, 0.75 - 0.5 / (2 * 2.0), 750, 0.8, 40.0, 0.5, memory=0.25, gpu=0.1)
    assert sensor.read(2.0) == expected
    assert sensor.read(2.0).cpu == expected.cpu, "no time has passed"


def test_only_the_cores_of_the_thread_count():
    text = "cpu 9 9 9 9\ncpu0 1 2 3 4\ncpu1 10 20 30 40\ncpu10 5 5 5 5\nintr 1"
    assert parse_stat(text, frozenset({1})) == CpuTimes(40, 100)
    assert parse_stat(text, frozenset({0, 1})) == CpuTimes(44, 110)
    assert parse_stat(text) == parse_stat(text, frozenset({7})) == CpuTimes(9, 36)


def test_times_at_a_reading_are_those_measured_since_the_previous_one():
    idle = (Variant("small", 0.5, 1, 0.01), Variant("large", 0.9, 1, 0.04))
    times, reading = NetworkTimes(idle), LoadReading(1.0, 0.5, 100)
    assert [one.latency_s for one in times.at_reading(LoadReading(0.0, 0.0, 100))] == [0.01, 0.04]
    for inference_s in (0.08, 0.12, 0.9):
        times.add(1, inference_s, inference_s + 0.002)
    predicted = [one.latency_s / speed_of(0.5) for one in times.at_reading(reading)]
    assert predicted == pytest.approx([0.032, 0.122]), "the median ratio is 3, and capturing takes 2 ms"
    kept = [one.latency_s / speed_of(0.5) for one in times.at_reading(reading)]
    assert kept == pytest.approx(predicted), "without inferences the earlier ones hold"


def test_a_report_names_the_network_and_its_newest_switches():
    plain = DeviceStatus(5.0, 4.0, 30.0, 0.5)
    assert plain.encode() == "[5,4,30,0.5]"
    assert decode_status(plain.encode()) == plain
    switches = tuple((0.25 * number, f"svd.base.{number}") for number in range(MAX_SWITCHES + 5))
    status = replace(plain, network="x" * 300, switches=switches)
    text = status.encode()
    assert len(text) <= MAX_REPORT_BYTES
    assert decode_status(text) == replace(plain, network="x" * 64, switches=switches[5:])
    for wrong in ('"x",[[1]]', "1,[]", '"x",[[1,"y"],[-1,"z"]]', '"x",[[1,2]]', f'"{"x" * 65}",[]'):
        with pytest.raises(WireError):
            decode_status(f"[5,4,30,0.5,{wrong}]")


def test_switches_are_events_of_the_live_page():
    timeline = Timeline()
    for number, switches in enumerate(((), ((6.5, "svd"),), ((11.0, "base"), (12.0, "svd")))):
        timeline.add_report(DeviceStatus(5.0 * number, 4.0, 30.0, 0.5, "svd", switches))
    document = timeline.document([])
    assert document["switches"] == [(6.5, "svd"), (11.0, "base"), (12.0, "svd")]
    assert document["reports"][1] == (5.0, 4.0, 30.0, 0.5)


def test_the_printed_state_names_the_score_of_the_task_and_the_network():
    report = DeviceReport(5.0, 4.0, 30.0, 0.0, 0.0, 2, 0.75, "", "accuracy", "svd.base")
    assert _line(report).endswith("live accuracy 0.750  network svd.base")
    assert _line(replace(report, measure="mIoU", network=None)).endswith("live mIoU 0.750")


def test_goals_have_no_effect_on_several_applications():
    command = ["device", "--app", "a.yaml", "--latency-goal", "0.1", "--energy-goal", "1"]
    result = run_command(command)
    assert isinstance(result.exception, RequestError)
    assert "--latency-goal, --energy-goal have no effect with --app" in str(result.exception)


def test_goals_of_a_device_are_those_of_its_application():
    (app,) = experiment_of(parse_session_request(ASKED | {"goals": {"latency_s": 0.05}})).workloads[0].apps
    assert (app.name, app.latency_goal_s, app.energy_goal_j, app.accuracy_goal) == ("classification", 0.05, None, None)
    assert experiment_of(parse_session_request({**ASKED, "goals": None})).workloads[0].apps == ()
    with pytest.raises(RequestError, match=r"goals\.latency_s"):
        parse_session_request(ASKED | {"goals": {"latency_s": 0.0}})
