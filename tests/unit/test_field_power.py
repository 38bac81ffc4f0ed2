"""Power cuts: nothing acknowledged is lost, and the simulated disk drops unsynced writes."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from benchmarks.field.power import RecordedDisk, run_power_cuts
from driftlab.platform.core import files
from driftlab.platform.core.files import append_lines, write_atomically


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_after_a_power_cut():
    totals, broken = run_power_cuts(0, 20)
    assert (totals["cuts"], broken) == (20, [])


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
