"""Energy in joules that this computer consumes, measured by its sensors where they are readable.

A sensor measures the whole computer or one component, including the energy of other programs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from driftlab.platform.sim.ledger import Account

POWERCAP, SUPPLIES = "sys/class/powercap", "sys/class/power_supply"
MICRO_WH_J = 3600e-6  # joules of a microwatt-hour


class EnergySensor(Protocol):
    """A counter of joules with an arbitrary zero."""

    name: str

    def read_j(self) -> float | None:
        """Return the joules so far; None if the sensor cannot be read now."""


@dataclass
class RaplSensor:
    """The energy counters of the processor packages; each wraps around at its own maximum."""

    folders: Sequence[Path]
    name: str = "RAPL"
    _last: dict[Path, float] = field(default_factory=dict)
    _sum_j: float = 0.0

    def read_j(self) -> float | None:
        """Add the energy of every package since the previous call, and return the sum."""
        for folder in self.folders:
            now, most = _number(folder / "energy_uj"), _number(folder / "max_energy_range_uj")
            if now is None:
                return None
            before = self._last.get(folder, now)
            self._last[folder] = now
            self._sum_j += (now - before if now >= before else now - before + (most or before)) * 1e-6
        return self._sum_j


@dataclass
class BatterySensor:
    """The charge counter of a battery; readable only while the battery discharges."""

    folder: Path
    name: str = "battery"

    def read_j(self) -> float | None:
        """Return the energy drawn from the battery, from an arbitrary zero."""
        remaining = _number(self.folder / "energy_now")
        discharging = _text(self.folder / "status") == "Discharging"
        return -remaining * MICRO_WH_J if remaining is not None and discharging else None


@dataclass
class GpuSensor:
    """NVIDIA's energy counters, which start when the driver is loaded."""

    name: str = "NVML"

    def read_j(self) -> float | None:
        """Return the sum over all GPUs; None without a driver or on GPUs without counters."""
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            counts = [float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) for handle in handles]
            return sum(counts) * 1e-3 if counts else None
        except pynvml.NVMLError:
            return None
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def sensors_here(root: Path = Path("/"), gpus: EnergySensor | None = None) -> tuple[EnergySensor, ...]:
    """Return the readable sensors: a discharging battery, or else packages and GPUs.

    A battery supplies packages and GPUs, so adding their counters would count energy twice.
    """
    batteries = [BatterySensor(folder) for folder in sorted((root / SUPPLIES).glob("*"))]
    for battery in batteries:
        if battery.read_j() is not None:
            return (battery,)
    packages = RaplSensor([folder for folder in sorted((root / POWERCAP).glob("intel-rapl:*")) if _is_package(folder)])
    candidates: list[EnergySensor] = [*([packages] if packages.folders else []), gpus or GpuSensor()]
    return tuple(sensor for sensor in candidates if sensor.read_j() is not None)


def read_all_j(sensors: Sequence[EnergySensor]) -> float | None:
    """Return the sum of all sensors; None without sensors, or if one cannot be read now."""
    read = [sensor.read_j() for sensor in sensors]
    return None if not read or None in read else sum(joules for joules in read if joules is not None)


@dataclass
class EnergyMeter:
    """Replace the joules of the hardware profile by measured ones."""

    sensors: Sequence[EnergySensor]
    _last_j: float | None = None
    _charged: Mapping[tuple[int, str], float] = field(default_factory=dict)  # joules at the previous reading

    @property
    def name(self) -> str:
        return " and ".join(sensor.name for sensor in self.sensors)

    def charge(self, *accounts: Account) -> None:
        """Divide the energy since the previous reading among the purposes, in the proportions of the profile."""
        now_j = read_all_j(self.sensors)
        before_j, self._last_j = self._last_j, now_j
        profiled = {place: joules - self._charged.get(place, 0.0) for place, joules in _joules(accounts).items()}
        if now_j is not None and before_j is not None and sum(profiled.values()) > 0:
            scale = max(0.0, now_j - before_j) / sum(profiled.values())
            for (number, purpose), joules in profiled.items():
                accounts[number].spend(purpose, joules * (scale - 1.0))
        self._charged = _joules(accounts)


def _joules(accounts: Sequence[Account]) -> dict[tuple[int, str], float]:
    """Return the joules by number of the account and purpose."""
    return {
        (number, purpose): joules
        for number, account in enumerate(accounts)
        for purpose, joules in account.joules.items()
    }


def _is_package(folder: Path) -> bool:
    """Return whether a zone is a package; a part of one, or the platform zone, would be counted twice."""
    return folder.name.count(":") == 1 and (_text(folder / "name") or "").startswith("package")


def _number(file: Path) -> float | None:
    text = _text(file)
    return float(text) if text is not None and text.isdecimal() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not there, or only root may read it
        return None
