"""Record the load of this computer to a CSV file for experiments.

On Linux the source is /proc and /sys, elsewhere psutil. In a container the CPU load is that of the whole computer;
memory is the container's if it has a limit.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from driftlab.errors import DataError
from driftlab.platform.world.load import LoadStep
from driftlab.platform.world.load_csv import write_steps

PERIOD_S = 0.5
COUNTED = 8  # fields of /proc/stat up to `steal`: the next two, of guests, are included in `user` and `nice`
CGROUPS = (  # versions 2 and 1: folder, limit, use
    ("sys/fs/cgroup", "max", "current"),
    ("sys/fs/cgroup/memory", "limit_in_bytes", "usage_in_bytes"),
)
MIN_CLOCK, MAX_CLOCK = 0.001, 10.0


@dataclass(frozen=True)
class CpuTimes:
    """Counters of CPU time since the computer started, in any unit."""

    idle: float
    total: float

    def busy_since(self, before: CpuTimes, otherwise: float) -> float:
        """Return the busy share since an earlier snapshot; `otherwise` if no time has passed."""
        passed = self.total - before.total
        if passed <= 0:
            return otherwise
        return min(1.0, max(0.0, 1 - (self.idle - before.idle) / passed))


@dataclass(frozen=True)
class HostSample:
    """The load of a computer at one time."""

    times: CpuTimes
    memory: float  # share in use
    clock: float = 1.0  # relative to the highest one
    temperature_c: float | None = None
    battery: float | None = None  # share of its charge
    gpu: float | None = None  # share in use, of the busiest GPU


class LoadSource(Protocol):
    """A source of load samples."""

    def sample(self) -> HostSample:
        """Return the load at this moment."""


@dataclass(frozen=True)
class ProcSource:
    """Load samples from /proc and /sys of Linux."""

    root: Path = Path("/")
    cores: frozenset[int] = frozenset()  # whose CPU time is counted; none: all

    def sample(self) -> HostSample:
        """Return the load at this moment; sensors that the computer lacks are None."""
        stat, meminfo = (self._text(name) for name in ("proc/stat", "proc/meminfo"))
        if stat is None or meminfo is None:
            raise DataError(f"'{self.root}' lacks proc/stat or proc/meminfo. The load can be recorded only with both.")
        temperatures = [value / 1e3 for value in self._numbers("sys/class/thermal/thermal_zone*/temp")]
        charges = [value / 100 for value in self._numbers("sys/class/power_supply/*/capacity")]
        return HostSample(
            parse_stat(stat, self.cores),
            max(parse_meminfo(meminfo), self._cgroup_memory(parse_meminfo_total(meminfo))),
            self._clock(),
            max(temperatures, default=None),
            min(1.0, max(0.0, charges[0])) if charges else None,
        )

    def _clock(self) -> float:
        """Return the mean clock rate of the cores, relative to their highest one."""
        folder = "sys/devices/system/cpu/cpu[0-9]*/cpufreq"
        now, highest = (list(self._numbers(f"{folder}/{name}")) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
        if not now or not sum(highest) or len(now) != len(highest):
            return 1.0
        return min(MAX_CLOCK, max(MIN_CLOCK, sum(now) / sum(highest)))

    def _cgroup_memory(self, total_bytes: float) -> float:
        """Return the used share of a container's limit, without reclaimable file cache; 0 without a limit."""
        for folder, *names in CGROUPS:
            limit, used = (next(self._numbers(f"{folder}/memory.{name}"), None) for name in names)
            if limit is not None and used is not None and 0 < limit < total_bytes:
                stat = self._text(f"{folder}/memory.stat") or ""
                cache = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
                return min(1.0, max(0.0, (used - (int(cache[1]) if cache else 0)) / limit))
        return 0.0

    def _text(self, name: str) -> str | None:
        try:
            return (self.root / name).read_text(encoding="ascii", errors="replace")
        except OSError:  # missing, or unreadable for now: a suspended sensor raises it
            return None

    def _numbers(self, pattern: str) -> Iterator[float]:
        for file in sorted(self.root.glob(pattern)):
            text = (self._text(str(file.relative_to(self.root))) or "").strip()
            if text.lstrip("-").isdecimal():
                yield float(text)


class PsutilSource:
    """Load samples from psutil, for systems other than Linux."""

    def sample(self) -> HostSample:
        """Return the load at this moment; sensors that the computer lacks are None."""
        import psutil

        times, frequency = psutil.cpu_times(), psutil.cpu_freq()
        heat: dict[str, Any] = getattr(psutil, "sensors_temperatures", dict)()
        battery = getattr(psutil, "sensors_battery", lambda: None)()
        has_clock = bool(frequency and frequency.max)
        return HostSample(
            CpuTimes(times.idle + getattr(times, "iowait", 0.0), sum(times)),
            psutil.virtual_memory().percent / 100,
            min(MAX_CLOCK, max(MIN_CLOCK, frequency.current / frequency.max)) if has_clock else 1.0,
            max((sensor.current for sensors in heat.values() for sensor in sensors), default=None),
            battery.percent / 100 if battery else None,
        )


@dataclass(frozen=True)
class GpuSource:
    """Load samples of another source, with the use of the NVIDIA GPUs."""

    source: LoadSource

    def sample(self) -> HostSample:
        """Return the load at this moment; sensors that the computer lacks are None."""
        return replace(self.source.sample(), gpu=gpu_use())


def gpu_use() -> float | None:
    """Return the used share of the busiest NVIDIA GPU; None without a driver or a GPU that reports it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return max((pynvml.nvmlDeviceGetUtilizationRates(one).gpu / 100 for one in handles), default=None)
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def parse_stat(text: str, cores: frozenset[int] = frozenset()) -> CpuTimes:
    """Return the idle and the total time of some cores from the text of /proc/stat; without cores, of all."""
    first, *others = text.splitlines() or [""]
    total = _cpu_times(first, "cpu")
    if total is None:
        raise DataError(f"/proc/stat begins with '{text[:60]}'. Its first line must hold the times of all CPUs.")
    found = [own for core in sorted(cores) for line in others if (own := _cpu_times(line, f"cpu{core}")) is not None]
    return CpuTimes(sum(one.idle for one in found), sum(one.total for one in found)) if found else total


def _cpu_times(line: str, name: str) -> CpuTimes | None:
    """Return the times in a line of /proc/stat; None for the line of another CPU."""
    fields = line.split()
    if len(fields) < 5 or fields[0] != name or not all(field.isdecimal() for field in fields[1:]):
        return None
    counts = [int(field) for field in fields[1 : 1 + COUNTED]]
    return CpuTimes(sum(counts[3:5]), sum(counts))


def parse_meminfo(text: str) -> float:
    """Return the share of memory in use according to /proc/meminfo."""
    available = _meminfo(text, "MemAvailable")
    return min(1.0, max(0.0, 1 - available / parse_meminfo_total(text)))


def parse_meminfo_total(text: str) -> float:
    """Return the memory of the computer in bytes."""
    return _meminfo(text, "MemTotal")


def _meminfo(text: str, name: str) -> float:
    line = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if line is None or (name == "MemTotal" and int(line[1]) == 0):
        raise DataError(f"/proc/meminfo has no value of {name}.")
    return 1024.0 * int(line[1])


def source_here(cores: frozenset[int] = frozenset()) -> LoadSource:
    """Return the source of load samples for this computer; with /proc, for some of its cores."""
    source = ProcSource(cores=cores) if Path("/proc/stat").exists() else PsutilSource()
    return source if gpu_use() is None else GpuSource(source)


def record(
    path: Path,
    seconds: float | None,
    source: LoadSource,
    period_s: float = PERIOD_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write a row of load per period to a CSV file, for `seconds` or until interrupted."""
    write_steps(path, steps_of(seconds, source, period_s, now, sleep))


def steps_of(
    seconds: float | None,
    source: LoadSource,
    period_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[LoadStep]:
    """Yield a step per period: the mean CPU load, and all other values at the start of the period."""
    start_s, last, cpu, period = now(), source.sample(), 0.0, 0
    since_s = 0.0
    while seconds is None or (period + 1) * period_s <= seconds + period_s / 2:
        period += 1
        sleep(max(0.0, start_s + period * period_s - now()))
        sample, time_s = source.sample(), now() - start_s
        cpu = sample.times.busy_since(last.times, cpu)
        yield LoadStep(since_s, cpu, last.memory, last.clock, last.temperature_c, last.battery, last.gpu)
        last, since_s = sample, time_s
