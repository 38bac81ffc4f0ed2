"""Joules from the sensors of a computer, given as a folder of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftlab.platform.field.energy import EnergyMeter, sensors_here
from driftlab.platform.sim.ledger import Account

RANGE_UJ = 1_000_000


class NoGpu:
    name = "none"

    def read_j(self):
        return None


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


def package(root: Path, folder: str, name: str, joules: float) -> Path:
    here = root / "sys/class/powercap" / folder
    here.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", name), ("energy_uj", round(joules * 1e6)), ("max_energy_range_uj", RANGE_UJ)):
        (here / file).write_text(f"{text}\n")
    return root


def test_packages_are_summed_without_their_parts_and_the_platform(tmp_path):
    for folder, name in (("intel-rapl:0", "package-0"), ("intel-rapl:1", "package-1")):
        package(tmp_path, folder, name, 0.25)
    package(tmp_path, "intel-rapl:0:0", "core", 0.1)
    package(tmp_path, "intel-rapl:2", "psys", 0.1)
    (sensor,) = sensors_here(tmp_path, NoGpu())
    assert sensor.read_j() == 0.0
    package(tmp_path, "intel-rapl:0", "package-0", 0.75)
    package(tmp_path, "intel-rapl:1", "package-1", 0.125)  # after it wrapped around at 1 J
    assert sensor.read_j() == pytest.approx(0.5 + 0.875)


def test_a_battery_is_read_while_it_discharges(tmp_path):
    battery = "sys__class__power_supply__BAT0"
    package(
        machine(tmp_path, **{f"{battery}__energy_now": "50000000", f"{battery}__status": "Discharging"}), "x", "y", 0
    )
    (sensor,) = sensors_here(tmp_path, NoGpu())
    before_j = sensor.read_j()
    machine(tmp_path, **{f"{battery}__energy_now": "49999000"})
    assert sensor.read_j() - before_j == pytest.approx(3.6)  # a milliwatt-hour
    machine(tmp_path, **{f"{battery}__status": "Charging"})
    assert sensors_here(tmp_path, NoGpu()) == ()


def test_measured_joules_replace_estimated_ones_in_their_proportions(tmp_path):
    meter = EnergyMeter(sensors_here(package(tmp_path, "intel-rapl:0", "package-0", 0.1), NoGpu()))
    account = Account()
    account.spend("inference", 5.0)  # before the first reading: as estimated
    meter.charge(account)
    account.spend("inference", 30.0)
    account.spend("coding", 10.0)
    meter.charge(package(tmp_path, "intel-rapl:0", "package-0", 0.9) and account)
    assert account.joules == pytest.approx({"inference": 5.0 + 0.6, "coding": 0.2})
    meter.charge(account)  # no task and no energy since the last reading
    assert account.energy_j == pytest.approx(5.8)


def test_estimates_are_unchanged_without_a_sensor(tmp_path):
    meter, account = EnergyMeter(sensors_here(tmp_path, NoGpu())), Account()
    for _ in range(2):
        account.spend("inference", 1.0)
        meter.charge(account)
    assert (meter.sensors, account.energy_j) == ((), 2.0)
