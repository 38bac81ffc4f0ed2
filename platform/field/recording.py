"""The load of this machine, recorded into a CSV that experiments read: from /proc and /sys on Linux, else by psutil.

The CPU load is that of the whole machine, also within a container; the memory is the container's where it has a limit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from driftlab.errors import DataError
from driftlab.platform.world.load import LoadStep
from driftlab.platform.world.load_csv import write_steps

PERIOD_S = 0.5
COUNTED = 8  # fields of a line of /proc/stat until `steal`: what guests used is in `user` and `nice` already
CGROUPS = (  # of versions 2 and 1: folder, limit, use
    ("sys/fs/cgroup", "max", "current"),
    ("sys/fs/cgroup/memory", "limit_in_bytes", "usage_in_bytes"),
)
MIN_CLOCK, MAX_CLOCK = 0.001, 10.0


@dataclass(frozen=True)
class CpuTimes:
    """Counters of CPU time since the machine started, in any unit."""

    idle: float
    total: float

    def busy_since(self, before: CpuTimes, otherwise: float) -> float:
        """Return the share in use since an earlier snapshot; `otherwise` where no time has passed."""
        passed = self.total - before.total
        if passed <= 0:
            return otherwise
        return min(1.0, max(0.0, 1 - (self.idle - before.idle) / passed))


@dataclass(frozen=True)
class HostSample:
    """What a machine tells of itself at a time."""

    times: CpuTimes
    memory: float  # share in use
    clock: float = 1.0
    temperature_c: float | None = None
    battery: float | None = None


class LoadSource(Protocol):
    """Where samples of a machine come from."""

    def sample(self) -> HostSample:
        """Take a sample."""


@dataclass(frozen=True)
class ProcSource:
    """Samples of a machine that runs Linux."""

    root: Path = Path("/")

    def sample(self) -> HostSample:
        """Read the counters; what a machine does not have is left out."""
        stat, meminfo = (self._text(name) for name in ("proc/stat", "proc/meminfo"))
        if stat is None or meminfo is None:
            raise DataError(f"'{self.root}' has no proc/stat and proc/meminfo: the load of this machine is not known.")
        temperatures = [value / 1e3 for value in self._numbers("sys/class/thermal/thermal_zone*/temp")]
        charges = [value / 100 for value in self._numbers("sys/class/power_supply/*/capacity")]
        return HostSample(
            parse_stat(stat),
            max(parse_meminfo(meminfo), self._cgroup_memory(parse_meminfo_total(meminfo))),
            self._clock(),
            max(temperatures, default=None),
            min(1.0, max(0.0, charges[0])) if charges else None,
        )

    def _clock(self) -> float:
        """Return the mean clock of the cores, relative to their highest one."""
        folder = "sys/devices/system/cpu/cpu[0-9]*/cpufreq"
        now, highest = (list(self._numbers(f"{folder}/{name}")) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
        if not now or not sum(highest) or len(now) != len(highest):
            return 1.0
        return min(MAX_CLOCK, max(MIN_CLOCK, sum(now) / sum(highest)))

    def _cgroup_memory(self, total_bytes: float) -> float:
        """Return the share of a container's limit in use, without files that can be dropped; 0 without a limit."""
        for folder, *names in CGROUPS:
            limit, used = (next(self._numbers(f"{folder}/memory.{name}"), None) for name in names)
            if limit is not None and used is not None and 0 < limit < total_bytes:
                stat = self._text(f"{folder}/memory.stat") or ""
                dropped = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
                return min(1.0, max(0.0, (used - (int(dropped[1]) if dropped else 0)) / limit))
        return 0.0

    def _text(self, name: str) -> str | None:
        try:
            return (self.root / name).read_text(encoding="ascii", errors="replace")
        except OSError:  # not there, or it cannot be read now: a sensor that sleeps says so
            return None

    def _numbers(self, pattern: str) -> Iterator[float]:
        for file in sorted(self.root.glob(pattern)):
            text = (self._text(str(file.relative_to(self.root))) or "").strip()
            if text.lstrip("-").isdecimal():
                yield float(text)


class PsutilSource:
    """Samples of any other machine."""

    def sample(self) -> HostSample:
        """Ask psutil; what a machine does not have is left out."""
        import psutil

        times, frequency = psutil.cpu_times(), psutil.cpu_freq()
        heat: dict[str, Any] = getattr(psutil, "sensors_temperatures", dict)()
        battery = getattr(psutil, "sensors_battery", lambda: None)()
        known = bool(frequency and frequency.max)
        return HostSample(
            CpuTimes(times.idle + getattr(times, "iowait", 0.0), sum(times)),
            psutil.virtual_memory().percent / 100,
            min(MAX_CLOCK, max(MIN_CLOCK, frequency.current / frequency.max)) if known else 1.0,
            max((one.current for ones in heat.values() for one in ones), default=None),
            battery.percent / 100 if battery else None,
        )


def parse_stat(text: str) -> CpuTimes:
    """Read the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, and guests."""
    fields = text.partition("\n")[0].split()
    if len(fields) < 5 or fields[0] != "cpu" or not all(field.isdecimal() for field in fields[1:]):
        raise DataError(f"/proc/stat begins with '{text[:60]}', not with the times of all CPUs.")
    counts = [int(field) for field in fields[1 : 1 + COUNTED]]
    return CpuTimes(sum(counts[3:5]), sum(counts))


def parse_meminfo(text: str) -> float:
    """Return the share of memory in use, as /proc/meminfo says."""
    available = _meminfo(text, "MemAvailable")
    return min(1.0, max(0.0, 1 - available / parse_meminfo_total(text)))


def parse_meminfo_total(text: str) -> float:
    """Return the memory of the machine in bytes."""
    return _meminfo(text, "MemTotal")


def _meminfo(text: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if found is None or (name == "MemTotal" and int(found[1]) == 0):
        raise DataError(f"/proc/meminfo says nothing of {name}.")
    return 1024.0 * int(found[1])


def source_here() -> LoadSource:
    """Return the source of samples for this machine."""
    return ProcSource() if Path("/proc/stat").exists() else PsutilSource()


def record(
    path: Path,
    seconds: float | None,
    source: LoadSource,
    period_s: float = PERIOD_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write a load until the time is over, or until it is interrupted; each row is there as soon as it is known."""
    write_steps(path, steps_of(seconds, source, period_s, now, sleep))


def steps_of(
    seconds: float | None,
    source: LoadSource,
    period_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[LoadStep]:
    """Yield a step for each period: its CPU load is known at its end, the rest at its start."""
    start_s, last, cpu, turn = now(), source.sample(), 0.0, 0
    since_s = 0.0
    while seconds is None or (turn + 1) * period_s <= seconds + period_s / 2:
        turn += 1
        sleep(max(0.0, start_s + turn * period_s - now()))
        sample, time_s = source.sample(), now() - start_s
        cpu = sample.times.busy_since(last.times, cpu)
        yield LoadStep(since_s, cpu, last.memory, last.clock, last.temperature_c, last.battery)
        last, since_s = sample, time_s
