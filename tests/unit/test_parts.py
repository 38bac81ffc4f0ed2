"""The parts of a large fleet have the rows that the whole fleet has, on every backend."""

from __future__ import annotations

import pyarrow as pa
import pytest
from documents_factory import TINY
from whole_cells_factory import RecordingCells

from driftlab.platform.lab import grid, parts
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.parts import PART_DEVICES, parts_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences, table_differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.schema import TABLES, host_columns

LEARNS = {
    "name": "learns",
    "streaming": {"name": "on_device", "period_s": 2, "rate_fps": 2},
    "adaptation": {"name": "distill", "iterations": 2},
}
FIVE = {
    **TINY,
    "systems": ["no_custom", "tent", LEARNS],
    "fleets": [{"name": "five", "devices": [{"count": 3}, {"hardware": "raspberry-pi-4", "count": 2}]}],
    "workloads": [{**TINY["workloads"][0], "duration_s": 5}],
    "window_s": 2,
}


class Work(Progress):
    done_s = 0.0

    def advanced(self, work_s):
        self.done_s += work_s


@pytest.mark.parametrize(("system", "count"), [("no_custom", 250), ("tent", 101)])
def test_a_large_fleet_without_a_server_has_parts_with_all_its_devices_in_order(system, count):
    cell = _cell(system, count)
    own = parts_of(cell)
    assert sum((part.devices for part in own), ()) == cell.devices
    assert all(len(part.devices) <= PART_DEVICES for part in own)
    assert len({part.id for part in own}) == len(own) > 1


@pytest.mark.parametrize(
    ("system", "count"), [("ams", 250), ("one_time", 250), ("remote_tracking", 250), ("tent", 100)]
)
def test_a_small_fleet_and_one_with_a_server_remain_whole(system, count):
    cell = _cell(system, count)
    assert parts_of(cell) == [cell]


def _cell(system, devices):
    fleets = [{"name": "fleet", "devices": [{"count": devices}]}]
    return cells_of(parse({**TINY, "systems": [system], "fleets": fleets}))[0]


@pytest.mark.slow
def test_parts_have_the_rows_of_the_undivided_fleet_on_every_backend(tmp_path, monkeypatch):
    """Apart from their order, the digest of all weights, and rounding of sums."""
    whole = run(FIVE, out=tmp_path / "whole")
    monkeypatch.setattr(parts, "PART_DEVICES", 2)
    work = Work(), Work()
    inline = run(FIVE, out=tmp_path / "inline", progress=work[0])
    apart = run(FIVE, out=tmp_path / "apart", progress=work[1], open_backend=RecordingCells)
    assert differences(inline.directory, apart.directory) == []
    assert work[0].done_s == pytest.approx(work[1].done_s)
    before, after = open_run(whole.directory), open_run(inline.directory)
    for name in TABLES:
        drop = {*host_columns(name), *(["weights_digest"] if name == "runs" else [])}
        ours, theirs = (_sorted(one.table(name).drop_columns(sorted(drop))) for one in (before, after))
        assert ours.num_rows == theirs.num_rows
        if name == "runs":
            for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True):
                assert a == {
                    key: pytest.approx(value) if isinstance(value, float) else value for key, value in b.items()
                }
        else:
            assert list(table_differences(ours, theirs)) == []
    assert before.table("devices").num_rows == 3 * 5
    assert before.table("updates").num_rows > 0


def _sorted(table: pa.Table) -> pa.Table:
    keys = [key for key in ("cell", "system", "device", "app", "family", "parameter") if key in table.column_names]
    rows = table.to_pylist()
    order = sorted(range(len(rows)), key=lambda row: [str(rows[row][key]) for key in keys])
    return table.take(order) if rows else table


def test_a_failed_part_is_the_reason_of_its_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_DEVICES", 2)
    usual = grid.with_host

    def fails(rows, started_s):
        if rows["devices"][0]["device"] == ["device-0002"]:
            raise OSError("no memory")
        return usual(rows, started_s)

    monkeypatch.setattr(grid, "with_host", fails)
    outcome = run({**FIVE, "systems": ["no_custom"]}, out=tmp_path / "run")
    assert [reason for _, reason in outcome.failed] == ["OSError: no memory"]
