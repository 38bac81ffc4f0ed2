"""Load of a device by other programs: CPU, memory, GPU, clock, temperature and battery over time.

A network that takes t seconds on an idle device takes t / (clock * (1 - 0.9 * cpu)) under load, or, on a device with
the law `queued`, t / (clock * (1 - min(cpu, 0.95))); the law applies to execution and to latency predictions. With the
law `operators` only execution takes (1 + a * cpu) * (1 + b * memory) times as long again, with a and b of the network.
AdaScale's load index, a weighted mean of the use of CPU, GPU and memory, slows nothing: members may use it for
predictions. Loads are drawn before a session from a profile and a seed, or read from a file.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.core.records import CpuContention, LoadReading, Sensitivity
from driftlab.platform.world.profile import STRICT, parse

CPU_COST = 0.9  # loss of speed at a CPU load of 1, law `shared`
MAX_QUEUED_LOAD = 0.95  # CPU load above which the speed is constant, law `queued`
MAX_STEPS = 1_000_000
EDGE_S = 1e-9  # tolerance of instants: k / hz is rounded
COOLING_C = 5.0  # difference to the limit at which a throttled device returns to full speed

Part = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Celsius = Annotated[float, Ge(-100), Le(1000)]


@dataclass(frozen=True)
class Activity:
    """A state of the device's other programs; its load is drawn from a range at its start."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    cpu: tuple[Part, Part]
    memory: tuple[Part, Part] = (0.0, 0.0)  # share of the memory that they use
    dwell_s: tuple[Positive, Positive] = (5.0, 20.0)
    gpu: tuple[Part, Part] | None = None  # share of the GPU in use; None: the device has none

    def __post_init__(self) -> None:
        """Refuse reversed ranges."""
        ranges = {name: getattr(self, name) for name in ("cpu", "memory", "dwell_s", "gpu")}
        for name, (low, high) in ((name, ends) for name, ends in ranges.items() if ends is not None):
            if low > high:
                raise ValueError(f"{name} of '{self.name}' runs from {low:g} to {high:g}; give the lower end first")


@dataclass(frozen=True)
class Heat:
    """Thermal model of a device: its temperature, and the clock at which it is throttled."""

    __pydantic_config__: ClassVar = STRICT

    ambient_c: Celsius = 25.0
    rise_c: NotNegative = 50.0  # above ambient at full load, in the steady state
    settling_s: Positive = 30.0  # time constant
    limit_c: Celsius = 60.0
    throttled_clock: Annotated[float, Gt(0), Le(1)] = 0.6


@dataclass(frozen=True)
class Battery:
    """The battery of a device, and the power of other programs."""

    __pydantic_config__: ClassVar = STRICT

    capacity_j: Positive = 40_000.0  # 11 Wh: a phone's
    charge: Part = 1.0  # at the start
    idle_w: NotNegative = 0.5
    busy_w: NotNegative = 2.0  # above idle, at full load


@dataclass(frozen=True)
class LoadProfile:
    """A random process from which loads of devices are drawn, or a file with a recorded load."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    activities: Annotated[tuple[Activity, ...], MaxLen(100)] = ()  # none: no other programs
    order: Literal["random", "cycle"] = "random"  # the next activity is a random other one, or the next of the list
    noise: Part = 0.05  # standard deviation of the innovations of the CPU load
    noise_correlation: Annotated[float, Ge(0), Lt(1)] = 0.8  # correlation of the noise between steps
    step_s: Annotated[float, Ge(1e-3), Lt(math.inf)] = 0.5  # duration of constant load
    sense_hz: Annotated[float, Gt(0), Le(1000)] = 2.0  # readings per second
    law: CpuContention = "shared"  # how the CPU load slows the device
    heat: Heat | None = None
    battery: Battery | None = None
    file: Annotated[str, MinLen(1)] | None = None  # a CSV file instead of activities, heat and battery
    repeat: bool = False  # whether a file shorter than the session is repeated; else its last row holds

    def __post_init__(self) -> None:
        """Refuse a file together with a random process."""
        if self.file is not None and (self.activities or self.heat or self.battery):
            raise ValueError("a load is drawn from activities, heat and battery, or read from a file: give one of both")

    @property
    def loaded(self) -> bool:
        """Return whether the profile has any load."""
        return bool(self.activities or self.heat or self.battery or self.file)


def speed_of(cpu: float, clock: float = 1.0, law: CpuContention = "shared") -> float:
    """Return the speed of a device under load, relative to the idle device."""
    return clock * (1 - (min(cpu, MAX_QUEUED_LOAD) if law == "queued" else CPU_COST * cpu))


def speeds_of(cpu: npt.NDArray[np.float64], clock: float, law: CpuContention) -> npt.NDArray[np.float64]:
    """Return the speed of a device under each of some CPU loads."""
    lost = np.minimum(cpu, MAX_QUEUED_LOAD) if law == "queued" else CPU_COST * cpu
    return clock * (1 - lost)


def speed_of_network(load: LoadStep | LoadReading, sensitivity: Sensitivity) -> float:
    """Return the speed of a network under load, relative to the idle device: the law of the world."""
    speed = speed_of(load.cpu, load.clock, load.contention)
    if load.contention != "operators":
        return speed
    return speed / ((1 + sensitivity.cpu * load.cpu) * (1 + sensitivity.memory * load.memory))


def slowdown(load: Sequence[LoadReading]) -> float:
    """Return the speed at the newest reading; 1 without readings."""
    return speed_of(load[-1].cpu, load[-1].clock, load[-1].contention) if load else 1.0


@dataclass(frozen=True)
class IndexWeights:
    """Weights of the load index, of which only the ratios count; AdaScale publishes none."""

    cpu: float = 0.6
    gpu: float = 0.2
    memory: float = 0.2


def load_index(reading: LoadReading, weights: IndexWeights = IndexWeights()) -> float:
    """Return the weighted mean of the use of CPU, GPU and memory; of CPU and memory without a GPU."""
    used = ((weights.cpu, reading.cpu), (weights.gpu, reading.gpu), (weights.memory, reading.memory))
    present = [(weight, share) for weight, share in used if share is not None]
    return sum(weight * share for weight, share in present) / sum(weight for weight, _ in present)


@dataclass(frozen=True)
class LoadStep:
    """The load from an instant to the next step."""

    time_s: float
    cpu: float  # share in use by other programs
    memory: float = 0.0  # share of the memory in use by other programs
    clock: float = 1.0
    temperature_c: float | None = None
    battery: float | None = None  # charge, a fraction
    gpu: float | None = None  # share in use by other programs; None: no GPU
    contention: CpuContention = "shared"

    @property
    def speed(self) -> float:
        return speed_of(self.cpu, self.clock, self.contention)


@dataclass(frozen=True)
class Load:
    """The load of one device over a session; the last step holds."""

    name: str
    steps: tuple[LoadStep, ...]  # in order of time, the first at 0 or before
    sense_hz: float = 2.0
    capacity_j: float | None = (
        None  # of the battery, which driftlab discharges too; None: the charge of the steps holds
    )
    ends_s: float = math.inf  # end of a file that is shorter than the session; its last row holds afterwards

    @functools.cached_property
    def _times_s(self) -> list[float]:
        return [step.time_s for step in self.steps]

    def at(self, time_s: float) -> LoadStep:
        """Return the step that holds from a time on."""
        return self.steps[max(0, bisect.bisect_right(self._times_s, time_s + EDGE_S) - 1)]

    def until(self, time_s: float) -> LoadStep:
        """Return the step that held until a time, which is all that a sensor has."""
        return self.steps[max(0, bisect.bisect_left(self._times_s, time_s - EDGE_S) - 1)]

    def mean_cpu(self, start_s: float, stop_s: float) -> float:
        """Return the mean CPU load of a span."""
        return self._mean("cpu", start_s, stop_s)

    def mean_speed(self, start_s: float, stop_s: float) -> float:
        """Return the mean speed of a span."""
        return self._mean("speed", start_s, stop_s)

    def network_speed(self, start_s: float, stop_s: float, sensitivity: Sensitivity) -> float:
        """Return the mean speed of a network in a span."""
        return self._mean_of(lambda step: speed_of_network(step, sensitivity), start_s, stop_s)

    def sense(self, time_s: float, memory_bytes: int, spent_j: float = 0.0) -> LoadReading:
        """Return the reading at a time, on a device with `memory_bytes` that has consumed `spent_j`.

        The CPU load is the mean since the last reading; the other values are those until now.
        """
        now, start_s = self.until(time_s), max(0.0, time_s - 1 / self.sense_hz)
        cpu = self.mean_cpu(start_s, time_s) if time_s > 0 else now.cpu
        battery = now.battery
        if battery is not None and self.capacity_j is not None:
            battery = max(0.0, battery - spent_j / self.capacity_j)
        free_bytes = int(memory_bytes * (1 - now.memory))
        return LoadReading(
            time_s, cpu, free_bytes, now.clock, now.temperature_c, battery, now.contention, now.memory, now.gpu
        )  # fmt: skip

    def instants(self, stop_s: float) -> Iterator[float]:
        """Yield the distinct times before a stop at which the speed may change or a reading is due."""
        sensed = (k / self.sense_hz for k in range(math.ceil(stop_s * self.sense_hz)))
        last_s = -math.inf
        for time_s in sorted([*sensed, *(time_s for time_s in self._times_s if 0 <= time_s < stop_s)]):
            if time_s > last_s + EDGE_S and time_s < stop_s - EDGE_S:
                last_s = time_s
                yield time_s

    def _mean(self, name: str, start_s: float, stop_s: float) -> float:
        return self._mean_of(lambda step: float(getattr(step, name)), start_s, stop_s)

    def _mean_of(self, value_of: Callable[[LoadStep], float], start_s: float, stop_s: float) -> float:
        first, last = (bisect.bisect_right(self._times_s, edge) for edge in (start_s, stop_s))
        steps = self.steps[max(0, first - 1) : max(1, last)]
        if len(steps) == 1 or stop_s <= start_s:
            return value_of(steps[0])
        edges = [start_s, *(step.time_s for step in steps[1:]), stop_s]
        spans = zip(steps, edges, edges[1:], strict=False)
        return float(sum(value_of(step) * (after - before) for step, before, after in spans) / (stop_s - start_s))


# Use of a phone as states of a Markov chain; the figures are assumptions.
USER = (
    Activity("idle", (0.15, 0.15), (0.3, 0.3)),
    Activity("scroll", (0.45, 0.45), (0.4, 0.4)),
    Activity("video", (0.75, 0.75), (0.5, 0.5)),
    Activity("sync", (0.6, 0.6), (0.4, 0.4)),
)
COLD_START = (  # program starts: a burst of load, then a steady load
    Activity("start", (0.85, 1.0), (0.4, 0.6), (2.0, 4.0)),
    Activity("run", (0.3, 0.5), (0.5, 0.6), (5.0, 10.0)),
    Activity("rest", (0.1, 0.2), (0.3, 0.4), (8.0, 20.0)),
)
LOADS: Mapping[str, LoadProfile] = {
    profile.name: profile
    for profile in (
        LoadProfile("idle"),
        LoadProfile("user", USER),
        LoadProfile("random", (Activity("any", (0.0, 1.0), (0.1, 0.9), (3.0, 8.0)),)),
        LoadProfile("cold_start", COLD_START, order="cycle"),
    )
}


def find(name: str) -> LoadProfile:
    """Return a preset by name, or the profile of a CSV file."""
    if name.endswith(".csv"):
        return LoadProfile(name, file=name)
    if name not in LOADS:
        raise unknown_name("load", name, LOADS)
    return LOADS[name]


def from_mapping(given: Mapping[str, Any]) -> LoadProfile:
    """Parse the load of a spec: `{preset: user, noise: 0.1}`, `{file: day.csv}` or all fields."""
    own = dict(given)
    preset = own.pop("preset", None)
    if preset is None:
        return parse(LoadProfile, "load", {"name": own.get("file") or "own", **own})
    if not isinstance(preset, str) or preset not in LOADS:
        raise unknown_name("load", str(preset), LOADS)
    base = LOADS[preset]
    defaults = {field.name: getattr(base, field.name) for field in fields(base) if field.name not in own}
    return parse(LoadProfile, "load", {**defaults, **own})


def draw(profile: LoadProfile, duration_s: float, rng: np.random.Generator) -> Load | None:
    """Draw the load of one device from a profile without a file; None without other programs."""
    if not profile.loaded:
        return None
    if duration_s / profile.step_s > MAX_STEPS:
        raise RequestError(f"step_s is {profile.step_s:g} s; a session of {duration_s:g} s needs longer steps")
    times_s = profile.step_s * np.arange(max(1, math.ceil(duration_s / profile.step_s)))
    of_activities, of_noise = rng.spawn(2)  # separate, so that a shorter session is the beginning of a longer one
    means = list(_activities(profile, duration_s, of_activities))
    noise = _noise(profile, len(times_s), of_noise)
    starts_s = [start_s for start_s, *_ in means]
    steps = []
    for time_s, extra in zip(times_s.tolist(), noise, strict=True):
        _, cpu, memory, gpu = means[bisect.bisect_right(starts_s, time_s + EDGE_S) - 1]
        steps.append(LoadStep(time_s, min(1.0, max(0.0, cpu + extra)), memory, gpu=gpu, contention=profile.law))
    capacity_j = profile.battery.capacity_j if profile.battery else None
    return Load(profile.name, tuple(_with_battery(_with_heat(steps, profile), profile)), profile.sense_hz, capacity_j)


def _activities(
    profile: LoadProfile, duration_s: float, rng: np.random.Generator
) -> Iterator[tuple[float, float, float, float | None]]:
    """Yield the start, CPU load, memory and GPU load of consecutive activities."""
    activities, now_s = profile.activities, 0.0
    if not activities:
        yield 0.0, 0.0, 0.0, None
        return
    index = 0 if profile.order == "cycle" else int(rng.integers(len(activities)))
    while now_s < duration_s:
        one = activities[index]
        cpu, memory = float(rng.uniform(*one.cpu)), float(rng.uniform(*one.memory))
        yield now_s, cpu, memory, None if one.gpu is None else float(rng.uniform(*one.gpu))
        now_s += float(rng.uniform(*one.dwell_s))
        cyclic = profile.order == "cycle" or len(activities) == 1
        step = 1 if cyclic else 1 + int(rng.integers(len(activities) - 1))
        index = (index + step) % len(activities)


def _noise(profile: LoadProfile, count: int, rng: np.random.Generator) -> list[float]:
    """Draw correlated noise, which starts in its stationary state."""
    if not profile.activities or profile.noise == 0:
        return [0.0] * count
    correlation = profile.noise_correlation
    drawn = rng.normal(0.0, profile.noise, count)
    noise = [float(drawn[0]) / math.sqrt(1 - correlation**2)]
    for innovation in drawn[1:].tolist():
        noise.append(correlation * noise[-1] + innovation)
    return noise


def _with_heat(steps: Sequence[LoadStep], profile: LoadProfile) -> Iterator[LoadStep]:
    """Yield the steps with temperatures that follow the load, and clocks that follow temperatures."""
    heat = profile.heat
    if heat is None:
        yield from steps
        return
    approach, clock, now_c = 1 - math.exp(-profile.step_s / heat.settling_s), 1.0, heat.ambient_c
    for step in steps:
        clock = heat.throttled_clock if now_c >= heat.limit_c else 1.0 if now_c < heat.limit_c - COOLING_C else clock
        yield replace(step, clock=clock, temperature_c=now_c)
        now_c += approach * (heat.ambient_c + heat.rise_c * step.cpu * clock - now_c)


def _with_battery(steps: Iterator[LoadStep], profile: LoadProfile) -> Iterator[LoadStep]:
    """Yield the steps with the charge of the battery, which other programs discharge."""
    battery = profile.battery
    charge = battery.charge if battery else 0.0
    for step in steps:
        yield step if battery is None else replace(step, battery=charge)
        if battery is not None:
            consumed_j = profile.step_s * (battery.idle_w + battery.busy_w * step.cpu)
            charge = max(0.0, charge - consumed_j / battery.capacity_j)
