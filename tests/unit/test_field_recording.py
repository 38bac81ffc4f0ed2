"""Recording the load of a computer: parsers on given files, and a recording with a clock of the test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_factory import run_command

from driftlab.errors import DataError
from driftlab.platform.field.recording import (
    CpuTimes,
    HostSample,
    ProcSource,
    PsutilSource,
    gpu_use,
    parse_meminfo,
    parse_stat,
    record,
    source_here,
)
from driftlab.platform.world.load_csv import read_steps

#        user nice system idle iowait irq softirq steal guest guest_nice
BEFORE = "cpu  100 10 50 800 40 0 0 0 60 5\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
AFTER = "cpu  160 20 70 880 60 5 5 0 120 9\n"
MEMINFO = "MemTotal:        8000 kB\nMemFree:         1000 kB\nMemAvailable:    6000 kB\n"


def test_guest_time_is_counted_once_and_disk_waits_are_idle():
    before, after = parse_stat(BEFORE), parse_stat(AFTER)
    assert before == CpuTimes(840, 1000)
    assert after.busy_since(before, 0.5) == pytest.approx(1 - 100 / 200)


def test_equal_or_decreasing_counters_repeat_the_previous_value():
    before = parse_stat(BEFORE)
    assert before.busy_since(before, 0.25) == 0.25
    assert before.busy_since(parse_stat(AFTER), 0.25) == 0.25
    assert CpuTimes(700, 1010).busy_since(before, 0.25) == 1.0


def test_stat_of_an_old_kernel_is_read_and_other_text_refused():
    assert parse_stat("cpu 1 2 3 4\n") == CpuTimes(4, 10)
    for text in ("", "cpu0 1 2 3 4 5", "cpu 1 2 x 4 5", "intr 1 2 3 4 5"):
        with pytest.raises(DataError, match="/proc/stat"):
            parse_stat(text)


def test_available_memory_is_not_in_use():
    assert parse_meminfo(MEMINFO) == pytest.approx(0.25)
    with pytest.raises(DataError, match="MemAvailable"):
        parse_meminfo("MemTotal: 8000 kB\n")


def machine(root: Path, **files: str) -> ProcSource:
    named = {"proc/stat": BEFORE, "proc/meminfo": MEMINFO, **{k.replace("__", "/"): v for k, v in files.items()}}
    for name, text in named.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return ProcSource(root)


def test_a_computer_without_sensors_has_its_nominal_clock(tmp_path: Path):
    assert machine(tmp_path).sample() == HostSample(CpuTimes(840, 1000), 0.25)


@pytest.mark.parametrize(
    ("folder", "limit", "used", "dropped"),
    [
        ("sys/fs/cgroup", "max", "current", "inactive_file"),
        ("sys/fs/cgroup/memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_smaller_limit_of_a_container_is_used(tmp_path: Path, folder, limit, used, dropped):
    kib, files = 1024, {f"{folder}/memory.{used}": str(5000 * 1024), f"{folder}/memory.stat": f"{dropped} 1024000\n"}
    within = machine(tmp_path, **files, **{f"{folder}/memory.{limit}": f"{5000 * kib}\n"})
    assert within.sample().memory == pytest.approx(4000 / 5000)
    for unlimited in ("max\n", str(2**63), str(8001 * kib)):
        assert machine(tmp_path, **{f"{folder}/memory.{limit}": unlimited}).sample().memory == pytest.approx(0.25)


def test_sensors_are_read(tmp_path: Path):
    cpu = "sys__devices__system__cpu__cpu{}__cpufreq__{}"
    files = {cpu.format(core, "cpuinfo_max_freq"): "2000000\n" for core in (0, 1)}
    files |= {cpu.format(core, "scaling_cur_freq"): f"{speed}\n" for core, speed in ((0, 1000000), (1, 2000000))}
    files |= {"sys__class__thermal__thermal_zone0__temp": "41500\n", "sys__class__thermal__thermal_zone1__temp": "-1\n"}
    files |= {"sys__class__power_supply__BAT0__capacity": "87\n"}
    sample = machine(tmp_path, **files).sample()
    assert (sample.clock, sample.temperature_c, sample.battery) == (0.75, 41.5, 0.87)


def test_the_use_of_the_busiest_gpu_is_sampled(monkeypatch):
    shares = [30, 70]
    driver = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(shares),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=shares[handle]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpu_use() == 0.7
    assert source_here().sample().gpu == 0.7
    shares.clear()
    assert gpu_use() is None
    driver.nvmlInit = lambda: Path("/missing").stat()
    assert gpu_use() is None
    assert source_here().sample().gpu is None


def test_a_recording_has_the_load_of_each_period_at_its_start(tmp_path: Path):
    clock = [100.0]
    samples = iter([HostSample(CpuTimes(0, 0), 0.1), HostSample(CpuTimes(4, 10), 0.2), HostSample(CpuTimes(4, 10), 0.3),
                    HostSample(CpuTimes(14, 20), 0.4)])  # fmt: skip

    class RecordedSamples:
        def sample(self) -> HostSample:
            return next(samples)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    record(tmp_path / "mine.csv", 1.5, RecordedSamples(), now=lambda: clock[0], sleep=sleep)
    steps = [(step.time_s, step.cpu, step.memory) for step in read_steps(tmp_path / "mine.csv")]
    assert steps == [(0.0, 0.6, 0.1), (0.5, 0.6, 0.2), (1.0, 0.0, 0.3)]


def test_the_command_records_this_computer(tmp_path: Path):
    file = tmp_path / "mine.csv"
    result = run_command(["device", "--record-load", str(file), "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert len(read_steps(file)) == 2
    assert str(file) in result.output
    wrong = run_command(["device", "--record-load", str(tmp_path / "mine.txt")])
    assert wrong.exception is not None


def test_psutil_agrees_with_proc():
    ours, theirs = ProcSource(), PsutilSource()
    if not Path("/proc/stat").exists():
        pytest.skip("this computer has no /proc")
    assert theirs.sample().memory == pytest.approx(ours.sample().memory, abs=0.5)
    assert theirs.sample().times.idle > 0
