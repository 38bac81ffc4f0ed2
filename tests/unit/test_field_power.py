"""Power cuts: nothing acknowledged is lost, and the simulated disk drops unsynced writes."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from served_factory import TOKEN, served

from benchmarks.field import device_power
from benchmarks.field.power import RecordedDisk, run_power_cuts
from driftlab.platform.core import files
from driftlab.platform.core.files import append_lines, make_folder, write_atomically


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_after_a_power_cut():
    totals, broken = run_power_cuts(0, 6)
    assert (totals["cuts"], broken) == (6, [])


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("power")
    (folder / "device").mkdir()
    with served(folder / "served") as server, mock.patch.dict(device_power.ASKED["workload"], duration_s=2.0):
        return device_power.record_device(server.url, TOKEN, folder / "device")


@pytest.mark.slow
def test_a_device_loses_no_rows_and_uploads_by_a_power_cut(device, tmp_path):
    dice, last = random.Random(0), len(device.disk.events)
    assert min(device.newest(kind, last) for kind in ("entries", "queued", "sent")) >= 2
    for number in range(20):
        (folder := tmp_path / str(number)).mkdir()
        assert list(device_power.losses_of(device, dice.randrange(last + 1), dice, folder)) == []


@pytest.mark.slow
def test_a_killed_device_loses_rows_of_one_flush_interval(device, tmp_path):
    dice, last = random.Random(1), len(device.disk.events)
    for number in range(20):
        (folder := tmp_path / str(number)).mkdir()
        assert list(device_power.kill_losses(device, dice.randrange(last + 1), folder)) == []


def test_a_new_folder_and_its_parents_survive(tmp_path):
    (root := tmp_path / "root").mkdir()
    disk = RecordedDisk(root)
    with disk.recording():
        make_folder(root / "a/b")
    for seed in range(10):
        (here := tmp_path / str(seed)).mkdir()
        disk.survivors(len(disk.events), random.Random(seed)).write(root, here)
        assert (here / "a/b").is_dir()


def contents_after_cuts(disk, folder, place):
    """Return the contents of a file after many cuts at the end; None where it is missing."""
    found = set()
    for seed in range(40):
        (here := place / str(seed)).mkdir()
        disk.survivors(len(disk.events), random.Random(seed)).write(folder, here)
        found.add((here / "a").read_bytes() if (here / "a").exists() else None)
    return found


def test_an_atomic_write_survives_and_one_without_sync_does_not(tmp_path):
    for name, synced in (("with", True), ("without", False)):
        (folder := tmp_path / name).mkdir()
        (place := tmp_path / f"{name}-cuts").mkdir()
        disk = RecordedDisk(folder)
        with disk.recording(), mock.patch.object(files, "sync", files.sync if synced else lambda path: None):
            write_atomically(folder / "a", "old")
            write_atomically(folder / "a", "new")
        found = contents_after_cuts(disk, folder, place)
        assert (found == {b"new"}) is synced
        assert synced or {None, b"", b"new"} <= found


def test_appended_lines_survive(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    (place := tmp_path / "cuts").mkdir()
    disk = RecordedDisk(folder)
    with disk.recording():
        append_lines(folder / "a", ["first"])
        append_lines(folder / "a", ["second"])
    assert contents_after_cuts(disk, folder, place) == {b"first\nsecond\n"}
