"""The joules that this machine really draws, where it has a sensor that may be read.

A sensor sees the whole machine, or a part of it with all that runs there; no share of other programs is taken off.
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
    """Counts joules since a moment of its own."""

    name: str

    def read_j(self) -> float | None:
        """Return the joules so far; None where the sensor cannot be read now."""


@dataclass
class RaplSensor:
    """The counters of processor packages, which begin anew at a value of their own."""

    folders: Sequence[Path]
    name: str = "RAPL"
    _last: dict[Path, float] = field(default_factory=dict)
    _sum_j: float = 0.0

    def read_j(self) -> float | None:
        """Add what every package drew since the call before."""
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
    """A battery that feeds the machine; on mains it says nothing."""

    folder: Path
    name: str = "battery"

    def read_j(self) -> float | None:
        """Return the charge that has left the battery, from an arbitrary zero."""
        left = _number(self.folder / "energy_now")
        discharging = _text(self.folder / "status") == "Discharging"
        return -left * MICRO_WH_J if left is not None and discharging else None


@dataclass
class GpuSensor:
    """NVIDIA's counters, which begin when the driver was loaded."""

    name: str = "NVML"

    def read_j(self) -> float | None:
        """Add up the GPUs; None without a driver, or on GPUs that do not count."""
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
    """Return the sensors that can be read: a battery in use feeds everything, else packages and GPUs are added up."""
    batteries = [BatterySensor(folder) for folder in sorted((root / SUPPLIES).glob("*"))]
    for battery in batteries:
        if battery.read_j() is not None:
            return (battery,)
    packages = RaplSensor([folder for folder in sorted((root / POWERCAP).glob("intel-rapl:*")) if _is_package(folder)])
    found: list[EnergySensor] = [packages] if packages.folders else []
    return tuple(one for one in (*found, gpus or GpuSensor()) if one.read_j() is not None)


@dataclass
class EnergyMeter:
    """Puts measured joules in the place of those that a hardware profile says."""

    sensors: Sequence[EnergySensor]
    _last_j: float | None = None
    _charged: Mapping[str, float] = field(default_factory=dict)  # by purpose, at the reading before

    @property
    def name(self) -> str:
        return " and ".join(sensor.name for sensor in self.sensors)

    def charge(self, account: Account) -> None:
        """Share out what was drawn since the reading before, in proportion to what the profile says was spent on."""
        read = [sensor.read_j() for sensor in self.sensors]
        now_j = None if not read or None in read else sum(one for one in read if one is not None)
        before_j, self._last_j = self._last_j, now_j
        said = {purpose: joules - self._charged.get(purpose, 0.0) for purpose, joules in account.joules.items()}
        if now_j is not None and before_j is not None and sum(said.values()) > 0:
            scale = max(0.0, now_j - before_j) / sum(said.values())
            for purpose, joules in said.items():
                account.spend(purpose, joules * (scale - 1.0))
        self._charged = dict(account.joules)


def _is_package(folder: Path) -> bool:
    """Tell a package from a part of one, and from the platform, which contains the packages."""
    return folder.name.count(":") == 1 and (_text(folder / "name") or "").startswith("package")


def _number(file: Path) -> float | None:
    text = _text(file)
    return float(text) if text is not None and text.isdecimal() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not there, or only root may read it
        return None
