"""Load of a device: statistics of presets, sensors against closed forms, faults of files."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import DataError, RequestError
from driftlab.platform.core.records import LoadReading
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.world import load as loads
from driftlab.platform.world import load_csv
from driftlab.platform.world.load import (
    LOADS,
    Activity,
    IndexWeights,
    Load,
    LoadProfile,
    LoadStep,
    draw,
    from_mapping,
    load_index,
    slowdown,
    speed_of,
)

RAMP = Load("ramp", tuple(LoadStep(float(k), k / 10, k / 20, 1 - k / 20, 20.0 + k, 1 - k / 10) for k in range(11)))
GIB = 2**30
SHARE, WEIGHT = st.floats(0, 1), st.floats(1e-3, 1e3)


def drawn(given: Any, duration_s: float = 120.0, seed: int = 0) -> Load:
    profile = loads.find(given) if isinstance(given, str) else from_mapping(given)
    found = draw(profile, duration_s, rng_for(seed, "load", 0))
    assert found is not None
    return found


def cpus(load: Load) -> np.ndarray:
    return np.array([step.cpu for step in load.steps])


@pytest.mark.parametrize("name", sorted(set(LOADS) - {"idle"}))
def test_drawn_preset_depends_on_the_seed_only_and_is_within_its_bounds(name: str):
    first, again, other = drawn(name), drawn(name), drawn(name, seed=1)
    assert first == again != other
    assert len(first.steps) == 240
    assert drawn(name, 60).steps == first.steps[:120]
    assert all(0 <= step.cpu <= 1 and 0 <= step.memory <= 1 and step.clock == 1 for step in first.steps)
    assert {step.battery for step in first.steps} == {step.temperature_c for step in first.steps} == {None}


def test_a_user_moves_between_four_states_and_the_noise_is_the_stated_one():
    calm = drawn({"preset": "user", "noise": 0.0}, 8000)
    means, counts = np.unique(cpus(calm), return_counts=True)
    assert means.tolist() == [0.15, 0.45, 0.6, 0.75]
    assert counts / counts.sum() == pytest.approx([0.25] * 4, abs=0.06)
    noise = cpus(drawn({"activities": [{"name": "one", "cpu": (0.5, 0.5)}]}, 5000)) - 0.5
    assert noise.std() == pytest.approx(0.05 / math.sqrt(1 - 0.8**2), rel=0.05)
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(0.8, abs=0.03)


def test_random_loads_are_uniform_and_a_cold_start_begins_with_its_burst():
    values = cpus(drawn({"preset": "random", "noise": 0.0}, 5000))
    assert values.mean() == pytest.approx(0.5, abs=0.04)
    assert values.std() == pytest.approx(math.sqrt(1 / 12), abs=0.04)
    start = cpus(drawn({"preset": "cold_start", "noise": 0.0}))
    assert (start[:4] >= 0.85).all()
    assert 0.3 <= start[9] <= 0.5


def test_a_hot_device_slows_down_and_recovers():
    given = {"preset": "random", "noise": 0.0, "heat": {"settling_s": 2.0, "limit_c": 45.0, "throttled_clock": 0.5}}
    steps = drawn(given, 600).steps
    assert {step.clock for step in steps} == {0.5, 1.0}
    assert all(step.clock == 0.5 for step in steps if step.temperature_c >= 45)
    assert all(step.clock == 1.0 for step in steps if step.temperature_c < 45 - loads.COOLING_C)


def test_battery_charge_falls_by_the_consumed_energy():
    given = {"preset": "user", "battery": {"capacity_j": 1000.0, "idle_w": 1.0, "busy_w": 3.0}}
    load = drawn(given, 60)
    used_j = sum(0.5 * (1 + 3 * step.cpu) for step in load.steps[:-1])
    assert load.steps[-1].battery == pytest.approx(1 - used_j / 1000)
    assert load.sense(30.0, GIB, spent_j=100.0).battery == pytest.approx(load.until(30.0).battery - 0.1)
    assert load.sense(30.0, GIB, spent_j=1e6).battery == 0


class TestSensors:
    def test_reading_has_the_mean_cpu_load_since_the_last_one(self):
        assert RAMP.sense(4.0, GIB) == LoadReading(
            4.0, pytest.approx(0.3), int(GIB * 0.85), 0.85, 23.0, 0.7, memory=0.15
        )
        assert RAMP.sense(4.25, GIB).cpu == pytest.approx((0.25 * 0.3 + 0.25 * 0.4) / 0.5)
        assert RAMP.sense(0.0, GIB).cpu == 0.0

    def test_readings_do_not_depend_on_later_load(self):
        poisoned = Load("p", tuple(replace(s, cpu=0.999, memory=1.0, clock=9.0) if s.time_s >= 5 else s
                                   for s in RAMP.steps))  # fmt: skip
        for time_s in np.arange(0, 5.01, 0.25).tolist():
            assert poisoned.sense(time_s, GIB) == RAMP.sense(time_s, GIB)
        assert poisoned.sense(5.25, GIB) != RAMP.sense(5.25, GIB)

    def test_a_mean_is_the_integral_over_its_span(self):
        fine = np.linspace(1.3, 7.6, 6301)[:-1] + 0.0005
        assert RAMP.mean_cpu(1.3, 7.6) == pytest.approx(np.mean([RAMP.at(t).cpu for t in fine]), abs=1e-4)
        assert RAMP.mean_speed(2.0, 3.0) == pytest.approx(speed_of(0.2, 0.9)) == pytest.approx(0.9 * (1 - 0.9 * 0.2))
        assert RAMP.mean_cpu(20.0, 30.0) == 1.0

    def test_readings_and_changes_at_one_time_are_one_instant(self):
        assert list(RAMP.instants(2.0)) == [0.0, 0.5, 1.0, 1.5]
        assert list(replace(RAMP, sense_hz=0.4).instants(4.0)) == [0.0, 1.0, 2.0, 2.5, 3.0]

    def test_queued_law_sets_the_speed(self):
        load = draw(
            LoadProfile("queue", (Activity("busy", (1.0, 1.0)),), noise=0.0, law="queued"), 4.0, rng_for(0, "load")
        )
        assert load is not None
        assert load.mean_speed(0.0, 4.0) == pytest.approx(0.05)
        assert slowdown((load.sense(2.0, 1),)) == pytest.approx(0.05)
        assert slowdown((replace(load.sense(2.0, 1), cpu=0.5, clock=0.8),)) == pytest.approx(0.8 * 0.5)


class TestLoadIndex:
    @settings(max_examples=200, deadline=None)
    @given(cpu=SHARE, memory=SHARE, gpu=st.none() | SHARE, weights=st.tuples(WEIGHT, WEIGHT, WEIGHT), factor=WEIGHT)
    def test_it_is_a_mean_and_only_the_ratios_of_weights_count(
        self, cpu: float, memory: float, gpu: float | None, weights: tuple[float, float, float], factor: float
    ):
        reading = LoadReading(0.0, cpu, 1, memory=memory, gpu=gpu)
        used = [share for share in (cpu, gpu, memory) if share is not None]
        found = load_index(reading, IndexWeights(*weights))
        assert min(used) - 1e-12 <= found <= max(used) + 1e-12
        assert load_index(reading, IndexWeights(*(factor * one for one in weights))) == pytest.approx(found)
        equal = LoadReading(0.0, cpu, 1, memory=cpu, gpu=None if gpu is None else cpu)
        assert load_index(equal, IndexWeights(*weights)) == pytest.approx(cpu)

    def test_without_a_gpu_its_weight_is_left_out(self):
        with_gpu, without = LoadReading(0.0, 0.8, 1, memory=0.4, gpu=0.1), LoadReading(0.0, 0.8, 1, memory=0.4)
        assert load_index(with_gpu) == pytest.approx(0.6 * 0.8 + 0.2 * 0.1 + 0.2 * 0.4)
        assert load_index(without) == pytest.approx(0.75 * 0.8 + 0.25 * 0.4)
        assert load_index(without, IndexWeights(1.0, 5.0, 0.0)) == 0.8

    def test_gpu_load_is_sensed_and_does_not_slow_the_device(self):
        given = {"activities": [{"name": "game", "cpu": (0.2, 0.2), "gpu": (0.9, 0.9)}], "noise": 0.0}
        busy, free = drawn(given), drawn({"activities": [{"name": "game", "cpu": (0.2, 0.2)}], "noise": 0.0})
        assert (busy.sense(3.0, 1).gpu, free.sense(3.0, 1).gpu) == (0.9, None)
        assert busy.mean_speed(0, 9) == free.mean_speed(0, 9)
        assert replace(busy.at(3.0), gpu=None) == free.at(3.0)


class TestFiles:
    def read(self, folder: Path, text: str, duration_s: float = 10.0, **more: Any) -> Load:
        path = folder / "load.csv"
        path.write_text(text)
        return load_csv.read(LoadProfile("mine", file=str(path), **more), duration_s)

    def test_empty_cells_repeat_the_cell_above(self, tmp_path: Path):
        load = self.read(tmp_path, "cpu,time_s,memory,battery\n.2,1,.5,1\n,2,,\n.4,60,,.5\n", 90)
        assert load.steps == (LoadStep(1, 0.2, 0.5, battery=1), LoadStep(2, 0.2, 0.5, battery=1),
                              LoadStep(60, 0.4, 0.5, battery=0.5))  # fmt: skip
        assert load.at(0.0).cpu == load.at(59.0).cpu == 0.2
        of_gpu = self.read(tmp_path, "time_s,cpu,gpu\n0,.1,\n1,.1,.7\n2,.1,\n", 3)
        assert [of_gpu.at(k).gpu for k in range(3)] == [None, 0.7, 0.7]
        assert load.ends_s == math.inf

    def test_short_file_holds_its_last_row_or_is_repeated(self, tmp_path: Path):
        text = "time_s,cpu\n0,.1\n1,.2\n"
        held = self.read(tmp_path, text, 5)
        assert (held.at(4.5).cpu, held.ends_s) == (0.2, 2.0)
        again = self.read(tmp_path, text, 5, repeat=True)
        assert [again.at(k).cpu for k in range(5)] == [0.1, 0.2, 0.1, 0.2, 0.1]
        assert again.ends_s == math.inf
        with pytest.raises(DataError, match="battery"):
            self.read(tmp_path, "time_s,cpu,battery\n0,.1,1\n1,.1,1\n", 5, repeat=True)

    def test_first_row_holds_from_the_start_of_every_repetition(self, tmp_path: Path):
        again = self.read(tmp_path, "time_s,cpu\n2,.1\n3,.2\n", 12, repeat=True)
        assert [again.at(k).cpu for k in range(12)] == [0.1, 0.1, 0.1, 0.2] * 3

    def test_repetitions_are_limited_to_the_steps_of_a_drawn_load(self, tmp_path: Path):
        message = r"lasts 2e-05 s.*24 s.*2,400,000 rows, allowed are 1,000,000.*fewer rows"
        with pytest.raises(RequestError, match=message):
            self.read(tmp_path, "time_s,cpu\n0,.1\n0.00001,.2\n", 24, repeat=True)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("time_s,cpu\n0,1.4\n", r"line 2: cpu is '1.4', a share is between 0 and 1\.$"),
            ("time_s,cpu\n0,45\n", "a share is between 0 and 1 .45 % is 0.45"),
            ("time_s,cpu\n0,.2\n5,0,9\n", r"line 3 has 3 cells for 2 columns: write decimals with a point \(0.9"),
            ("time_s,cpu\n0,0,2\n5,0.9\n", "line 2 has 3 cells for 2 columns: write decimals with a point"),
            ("time_s,cpu,memory\n0,.2,\n5,.4\n6\n", "line 3 has 2 cells for 3 columns.*line 4 has 1 cell for.*keep"),
            ("time_s,cpu\n0,.2\n,\n", "line 3: time_s is empty"),
            ("time_s,cpu,cpu\n0,.2,.9\n", "column cpu stands there 2 times"),
            ("\ntime_s,cpu\n\n0,.2\n \n\n5,7\n", "line 7: cpu is '7'"),
            ("time_s,cpu\n0,.1\n0,.2\n", "line 3: time_s is 0, in the row above it is 0"),
            ("time_s,cpu\n0,\n1,.2\n", "line 2: cpu is empty"),
            ("time_s,cpu\n,.1\n", "line 2: time_s is empty"),
            ("time_s,cpu\n0,busy\n1,nan\n", "line 2: cpu is 'busy'.*line 3: cpu is 'nan'"),
            ("time_s,cpu,clock\n0,.1,0\n", "clock is '0'"),
            ("time_s,load\n0,.1\n", "no column cpu; unknown column 'load'"),
            ("time_s,cpu\n", "has 0 rows"),
            ("", "has 0 rows"),
        ],
    )
    def test_faults_are_reported_with_their_line(self, tmp_path: Path, text: str, message: str):
        with pytest.raises(DataError, match=message):
            self.read(tmp_path, text)

    def test_missing_file_is_refused(self, tmp_path: Path):
        with pytest.raises(DataError, match=r"There is no file .*no\.csv"):
            load_csv.read(loads.find(str(tmp_path / "no.csv")), 1.0)

    def test_written_file_is_read_back(self, tmp_path: Path):
        load_csv.write_steps(tmp_path / "ramp.csv", RAMP.steps)
        read = load_csv.read_steps(tmp_path / "ramp.csv")
        assert [astuple(step) for step in read] == [pytest.approx(astuple(step), abs=1e-4) for step in RAMP.steps]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "users"}, "user"),
        ({"preset": "user", "nois": 1}, "did you mean 'noise'"),
        ({"preset": "user", "file": "x.csv"}, "give one of both"),
        ({"activities": [{"name": "a", "cpu": [0.5, 0.2]}]}, "runs from 0.5 to 0.2"),
        ({"activities": [{"name": "a", "cpu": [0.5, 0.5], "gpu": [0.5, 0.2]}]}, "gpu of 'a' runs from 0.5 to 0.2"),
        ({"preset": "user", "sense_hz": 0}, "sense_hz"),
        ({"preset": "user", "battery": {"charge": 2}}, "battery.charge"),
    ],
)
def test_impossible_profile_is_refused(given: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        from_mapping(given)
