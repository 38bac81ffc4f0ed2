"""Whole runs in this process: complete tables, equal ones in a repetition, and resumed runs."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import driver_factory
import numpy as np
import pytest
from documents_factory import SHARING, TINY
from whole_cells_factory import RecordingCells, WholeCells

import driftlab
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.plan import plan_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import open_run as open_folder
from driftlab.platform.lab.seal import resume, run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.recorder import Recorder, table_file
from driftlab.platform.results.tables.schema import TABLES
from driftlab.platform.results.tables.sources import CELLS as CODE
from driftlab.platform.results.tables.sources import PACKAGE, cells_code
from driftlab.platform.sim.inline import InlineBackend, InlineSession
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.session import NodeId

DOCUMENT: dict[str, Any] = {
    **TINY,
    "fleets": [{"name": "two", "devices": [{"count": 2, "hardware": "raspberry-pi-4", "link": "congested"}]}],
}
FEW = {**DOCUMENT, "systems": [DOCUMENT["systems"][number] for number in (0, 1, 3)]}  # one fails between two others
HARMS = ("deleted", "cut", "emptied", "scribbled")
CELLS, SHARERS = ([cell.id for cell in cells_of(parse(document))] for document in (DOCUMENT, SHARING))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outcome = run(DOCUMENT, out=tmp_path_factory.mktemp("runs") / "reference")
    assert (outcome.done, outcome.kept, outcome.failed) == (len(CELLS), 0, ())
    return outcome.directory


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which two applications share a device."""
    outcome = run(SHARING, out=tmp_path_factory.mktemp("runs") / "shared")
    assert (outcome.done, outcome.kept, outcome.failed) == (len(SHARERS), 0, ())
    return outcome.directory


@pytest.fixture
def again(tmp_path: Path, reference: Path) -> Path:
    """Copy a run, so that a test may damage it."""
    return Path(shutil.copytree(reference, tmp_path / "again"))


def spoil(file: Path, harm: str) -> None:
    """Damage a file of a table."""
    whole = file.read_bytes()
    if harm == "deleted":
        file.unlink()
    else:
        middle = len(whole) // 2
        file.write_bytes(
            {"cut": whole[:middle], "emptied": b"", "scribbled": whole[:200] + b"\0\1\2" + whole[203:]}[harm]
        )


def test_seconds_that_last_a_second_change_no_table(tmp_path):
    found = []
    for clock in ("virtual", "wall"):
        short = {**DOCUMENT, "systems": DOCUMENT["systems"][2:3], "clock": clock}
        began_s = time.monotonic()
        found.append(run(short, ["workloads.0.duration_s=5"], out=tmp_path / clock).directory)
    assert time.monotonic() - began_s >= 5
    assert differences(*found) == []


class TestTables:
    def test_every_cell_has_every_table(self, reference):
        tables = driftlab.open_run(reference)
        for table in TABLES:
            quiet, nowhere = {CELLS[0]}, set(CELLS)  # the first cell sends nothing; no device learns, or is under load
            absent = dict.fromkeys(("adaptations", "loads", "channels", "estimates", "stages", "predictions"), nowhere)
            without = {"transfers": quiet, "updates": quiet, "audits": quiet, **absent}.get(table, set())
            assert set(tables.table(table)["cell"].to_pylist()) == set(CELLS) - without, table
        assert set(tables.frame("runs")["status"]) == {"done"}

    def test_every_frame_occurs_once_and_in_order(self, reference):
        frames = driftlab.open_run(reference).frame("frames")
        for _, device in frames.groupby(["cell", "device"]):
            assert device["frame"].tolist() == list(range(16))
            assert device["time_s"].tolist() == (np.arange(16) / 2).tolist()
        assert len(frames) == len(CELLS) * 2 * 16

    def test_sums_are_those_of_the_rows(self, reference):
        tables = driftlab.open_run(reference)
        frames, transfers, updates = (tables.frame(name) for name in ("frames", "transfers", "updates"))
        for whole in tables.frame("runs").itertuples():
            mine = frames[frames["cell"] == whole.cell]
            assert whole.score == pytest.approx(mine["score_window"].mean())
            assert whole.score_frame == pytest.approx(mine["score_frame"].mean())
            carried = transfers[transfers["cell"] == whole.cell].groupby("direction")["wire_bytes"].sum()
            assert (whole.uplink_bytes, whole.downlink_bytes) == (carried.get("up", 0), carried.get("down", 0))
            assert whole.updates == updates[(updates["cell"] == whole.cell)]["accepted"].sum()

    def test_versions_in_use_follow_the_updates_that_had_arrived(self, reference):
        tables = driftlab.open_run(reference)
        frames, updates = tables.frame("frames"), tables.frame("updates")
        assert frames["version"].max() > 1
        for (cell, device), shown in frames.groupby(["cell", "device"]):
            mine = updates[(updates["cell"] == cell) & (updates["device"] == device) & updates["accepted"]]
            for frame in shown.itertuples():
                arrived = mine[mine["arrive_s"] <= frame.time_s]["version"]
                assert frame.version == (arrived.max() if len(arrived) else 0)

    def test_each_device_has_the_same_stream_in_every_cell(self, reference):
        devices = driftlab.open_run(reference).frame("devices")
        assert devices.groupby("device")["stream_seed"].nunique().tolist() == [1, 1]
        assert devices["stream_seed"].nunique() == 2

    def test_the_log_lists_the_events_in_order(self, reference):
        events = [json.loads(line) for line in (reference / "log.jsonl").read_text().splitlines()]
        assert [event["event"] for event in events] == ["begins", "built"] + ["finished"] * len(CELLS)
        assert [event["cell"] for event in events[2:]] == CELLS

    def test_where_a_device_is_shared_networks_change_and_trainings_end_by_their_score(self, shared):
        """Else the comparisons with this run would say little."""
        tables = driftlab.open_run(shared)
        shares, updates = tables.frame("shares"), tables.frame("updates")
        sharing, streaming, agreeing = SHARERS
        assert set(shares.groupby(["cell", "time_s"])["app"].nunique()) == {1, 2}
        for cell in (sharing, streaming):
            assert shares[shares["cell"] == cell]["variant"].nunique() > 1
        for cell in (streaming, agreeing):
            assert updates[updates["cell"] == cell]["accepted"].sum() > 2
        assert updates[updates["cell"] == agreeing]["iterations"].nunique() > 2


class TestRepeatedRun:
    def test_the_same_request_gives_the_same_tables(self, reference, tmp_path):
        assert differences(reference, run(DOCUMENT, out=tmp_path / "twin").directory) == []

    def test_another_seed_gives_others(self, reference, tmp_path):
        document = {**DOCUMENT, "systems": DOCUMENT["systems"][:1]}
        other = driftlab.open_run(run(document, ["seeds.0=1"], out=tmp_path / "other").directory)
        ours = driftlab.open_run(reference).frame("frames")
        assert other.frame("frames")["score_frame"].tolist() != ours[ours["cell"] == CELLS[0]]["score_frame"].tolist()

    def test_a_part_of_a_grid_is_that_part_of_the_whole(self, reference, tmp_path):
        part = run({**DOCUMENT, "systems": DOCUMENT["systems"][2:3]}, out=tmp_path / "part").directory
        found = [line for line in differences(reference, part) if not line.startswith("spec ")]
        assert sorted(found) == sorted(f"cell '{cell}': only in {reference}" for cell in CELLS if "ams" not in cell)


class TestResume:
    def test_a_complete_run_is_left_as_it_is(self, again):
        before = {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")}
        outcome = resume(again)
        assert (outcome.done, outcome.kept) == (0, len(CELLS))
        assert {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")} == before

    def test_a_cell_of_which_any_file_is_gone_or_damaged_is_left_to_do(self, again):
        spec, _ = open_folder(again)
        for table, harm in zip(TABLES, itertools.cycle(HARMS), strict=False):
            file = table_file(again / "tables", table, CELLS[2])
            whole = file.read_bytes()
            spoil(file, harm)
            assert [cell.id for cell in plan_of(spec, again).todo] == [CELLS[2]], table
            file.write_bytes(whole)
        assert plan_of(spec, again).todo == ()

    def test_files_that_are_gone_or_damaged_are_made_again(self, reference, again):
        spoilt = dict(zip(CELLS, HARMS, strict=False))
        for (cell, harm), table in zip(spoilt.items(), ("runs", "frames", "updates", "systems"), strict=False):
            spoil(table_file(again / "tables", table, cell), harm)
        outcome = resume(again)
        assert (outcome.done, outcome.kept, outcome.failed) == (len(spoilt), len(CELLS) - len(spoilt), ())
        assert differences(reference, again) == []

    def test_cells_of_a_shared_device_equal_the_stored_ones(self, shared, tmp_path):
        again = Path(shutil.copytree(shared, tmp_path / "again"))
        for table, cell in zip(("shares", "variants"), SHARERS, strict=False):
            spoil(table_file(again / "tables", table, cell), "deleted")
        outcome = resume(again)
        assert (outcome.done, outcome.kept, outcome.failed) == (2, len(SHARERS) - 2, ())
        assert differences(shared, again) == []

    def test_leftovers_of_a_killed_run_do_not_disturb_its_resume(self, reference, again):
        (again / "tables" / "frames" / ".half.parquet.tmp").write_bytes(b"half a file")
        for file in list((again / "tables" / "runs").iterdir())[1:]:
            file.unlink()
        (again / "run.json").unlink()
        outcome = resume(again)
        assert (outcome.done, outcome.kept) == (len(CELLS) - 1, 1)
        assert differences(reference, again) == []

    def test_a_run_folder_may_be_moved(self, reference, again):
        table_file(again / "tables", "runs", CELLS[0]).unlink()
        moved = again.rename(again.with_name("moved"))
        assert resume(moved).directory == moved
        assert differences(reference, moved) == []


class Broken(InlineSession):
    """Loses the application's node of one cell in the middle of its work."""

    def call(self, node: NodeId, verb: str, *args: Any) -> Any:
        if verb == "apply" and any("one_time" in note for note in BROKEN):
            raise RuntimeError("out of luck")
        return super().call(node, verb, *args)


BROKEN: list[str] = []


class BrokenBackend(InlineBackend):
    def open(self, session: str) -> InlineSession:
        BROKEN[:] = [session]
        return Broken()


class TestFailure:
    def test_a_failed_cell_records_its_reason_and_the_others_continue(self, reference, tmp_path):
        outcome = run(DOCUMENT, out=tmp_path / "failed", open_backend=BrokenBackend)
        assert outcome.failed == ((CELLS[1], "RuntimeError: out of luck"),)
        assert outcome.done == len(CELLS) - 1
        rows = driftlab.open_run(outcome.directory).frame("runs").set_index("cell")
        assert rows["status"].to_dict() == {cell: "failed" if cell == CELLS[1] else "done" for cell in CELLS}
        assert rows.loc[CELLS[1], "error"] == "RuntimeError: out of luck"
        found = differences(reference, outcome.directory)
        assert found
        assert all(f"cell '{CELLS[1]}'" in line for line in found)
        mended = resume(outcome.directory)
        assert (mended.done, mended.kept, mended.failed) == (1, len(CELLS) - 1, ())
        assert differences(reference, outcome.directory) == []

    @pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), RecursionError("too deep")])
    def test_an_error_of_a_node_fails_its_cell_only(self, reference, tmp_path, monkeypatch, error):
        def raises(self: Any, *args: Any) -> None:
            raise error

        monkeypatch.setattr(AppNode, "apply", raises)
        outcome = run(FEW, out=tmp_path / "failed")
        failed = dict(outcome.failed)
        assert CELLS[1] in failed
        assert CELLS[0] not in failed
        message = f"cannot apply: {type(error).__name__}{f': {error}' if str(error) else ''}"
        assert all(reason.endswith(message) for reason in failed.values())

    def test_an_interrupt_is_none_and_stops_the_run(self, tmp_path, monkeypatch):
        def interrupted(self: Any, *args: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(AppNode, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(FEW, out=tmp_path / "stopped")
        assert driftlab.open_run(tmp_path / "stopped").frame("runs")["cell"].tolist() == CELLS[:1]

    def test_rows_that_no_table_holds_are_a_failed_cell(self, tmp_path, monkeypatch):
        write = Recorder.write

        def overflows(self: Any, cell: str, *rest: Any) -> Any:
            if cell == CELLS[0]:
                raise OverflowError("Python int too large to convert to C long")
            return write(self, cell, *rest)

        monkeypatch.setattr(Recorder, "write", overflows)
        outcome = run(FEW, out=tmp_path / "failed")
        ((cell, reason),) = outcome.failed
        assert cell == CELLS[0]
        assert "recorder recorder cannot write: OverflowError: Python int too large to convert to C long" in reason

    @pytest.mark.usefixtures("few_claims", "few_figures")
    def test_the_command_reports_it_and_exits_with_1(self, tmp_path, monkeypatch, capsys):
        import yaml

        from driftlab.cli import app

        member = tmp_path / "mine.py"
        member.write_text(
            "from dataclasses import dataclass\n"
            "from driftlab.platform.streaming.one_time import OneTime\n\n\n"
            "@dataclass(frozen=True)\n"
            "class Mine(OneTime):\n"
            "    def plan_downlink(self, state, session, stored, now_s):\n"
            "        raise ZeroDivisionError('of all things')\n"
        )
        mine = {"name": "mine", "base": "one_time", "streaming": {"name": f"{member}:Mine", "sample_s": 2}}
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump({**DOCUMENT, "systems": ["no_custom", mine]}))
        monkeypatch.setattr(
            sys, "argv", ["driftlab", "run", str(file), "--backend", "inline", "--out", str(tmp_path / "out")]
        )
        with pytest.raises(SystemExit) as ended:
            app.main()
        assert ended.value.code == 1
        output = capsys.readouterr().out
        assert "FAILED mine/running/two/seed-0: ZeroDivisionError: of all things" in output
        assert "no_custom" in output
        assert f"report  {tmp_path / 'out' / 'report.html'}" in output

    @pytest.mark.parametrize("open_backend", [InlineBackend, WholeCells, RecordingCells])
    def test_a_failed_write_fails_its_cell_and_the_run_continues(self, tmp_path, monkeypatch, open_backend):
        from driftlab.platform.results.tables import recorder

        write = recorder.write_table

        def full(table: Any, file: Path) -> None:
            if "one_time" in file.name:
                raise OSError(28, "No space left on device")
            write(table, file)

        monkeypatch.setattr(recorder, "write_table", full)
        outcome = run(FEW, out=tmp_path / "full", open_backend=open_backend)
        ((cell, reason),) = outcome.failed
        assert cell == CELLS[1]
        assert "No space left on device" in reason
        assert f"--resume {outcome.directory}" in reason
        assert set(driftlab.open_run(outcome.directory).frame("runs")["cell"]) == {CELLS[0], CELLS[3]}


class TestKill:
    """A driver that is gone at some moment between two things that it says."""

    EVENTS = 2 + len(CELLS) * (1 + 3)  # begins, built; per cell three windows, finished
    SHARED_EVENTS = 3 + len(SHARERS) * (1 + 6)  # two networks; one device and six windows

    @pytest.mark.parametrize(("whole", "number"), [("reference", 0), ("reference", 3), ("shared", 7)])
    def test_a_run_resumes_where_it_was_killed(self, request, tmp_path, whole, number):
        reference = request.getfixturevalue(whole)
        document, events = {"reference": (DOCUMENT, self.EVENTS), "shared": (SHARING, self.SHARED_EVENTS)}[whole]
        moment = random.Random(number)
        count = moment.randrange(1, events - 1)
        folder = tmp_path / "killed"
        driver, wire = driver_factory.start(document, str(folder))
        heard = []
        try:
            for _ in range(count):
                heard.append(wire.recv())
                wire.send("go on")
            time.sleep(moment.random() / 20)  # somewhere on the way to the next event
        finally:
            driver.kill()
            driver.join()
        assert driver.exitcode == -signal.SIGKILL
        outcome = resume(folder)
        assert outcome.failed == ()
        assert heard.count("finished") <= outcome.kept < outcome.done + outcome.kept
        assert differences(reference, folder) == []
        assert len(driftlab.open_run(folder).table("frames")) == len(driftlab.open_run(reference).table("frames"))


LOADED = """
import sys
from driftlab.platform.lab.seal import run
name, *overrides = sys.argv[1:]
assert not run(name, overrides, out="run").failed
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("driftlab.")))
"""
SHORT = ("workloads.0.duration_s=4", "student.pretrain_steps=2", "seeds=[0]")
SHORT += ("systems=[{name: elasticdnn, base: elasticdnn, scaling: {name: surrogate, epochs: 1}}]",)


def test_the_digest_of_an_experiment_has_all_code_that_its_cells_import(tmp_path):
    command = [sys.executable, "-c", LOADED, "elasticdnn-parts", *SHORT]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    rooms = [str(PACKAGE / part) for part in CODE if part != "platform/lab"]  # which also prints, plans and checks
    loaded = {file for file in shown.splitlines()[-1].split() if file.startswith(tuple(rooms))}
    missing = loaded - {str(file) for file in cells_code("elasticdnn-parts", None)}
    assert (len(loaded) > 50, missing) == (True, set())
