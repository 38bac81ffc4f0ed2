"""Cut the power of a device, or kill it, at random points of a recorded run.

Rows, waiting uploads and updates that were on disk must be there afterwards, in the journal or in the tables.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.field.power import DiskEvent, RecordedDisk
from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.platform.field import agent as agents
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.journal import FILE as JOURNAL
from driftlab.platform.field.journal import Journal, read_entries
from driftlab.platform.field.network_cache import CachedNetwork
from driftlab.platform.field.outbox import Outbox
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.tables import write_run
from driftlab.platform.field.ticket import join, read_ticket
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import open_run

FPS, SECONDS, FLUSH_S = 8.0, 6.0, 0.5
ASKED = {
    "system": {"name": "quick", "base": "ams", "streaming": {"name": "ams", "interval_s": 0.5}},
    "workload": {"name": "streets/running", "duration_s": SECONDS, "fps": FPS, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}


@dataclass(frozen=True)
class RecordedDevice:
    """The disk of a device from its ticket to its tables."""

    disk: RecordedDisk
    frames: int  # rows in its tables

    def newest(self, kind: str, stop: int) -> int:
        """Return the number of the newest acknowledgement of a kind before an event; 0 without one."""
        return max((one.number for one in self.disk.events[:stop] if one.kind == kind), default=0)

    def numbers(self, kind: str, stop: int) -> set[int]:
        """Return the numbers of all acknowledgements of a kind before an event."""
        return {one.number for one in self.disk.events[:stop] if one.kind == kind}


def record_device(url: str, token: str, folder: Path) -> RecordedDevice:
    """Play a stream on a device whose disk is recorded; the server is in another process or thread."""
    agent = Agent(join(url, token, parse_session_request(ASKED)))
    disk = RecordedDisk(folder)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(agents, "FLUSH_S", FLUSH_S))
        stack.enter_context(disk.recording())
        directory = stack.enter_context(create_run(agent.cell.experiment, folder / "run"))
        for owner, name, kind, number in _acknowledged(agent):
            stack.enter_context(mock.patch.object(owner, name, _noted(getattr(owner, name), disk, kind, number)))
        agent.begin(directory)
        disk.acknowledge("begun", 1)
        agent.run()
        write_run(agent, directory)
        disk.acknowledge("tables", 1)
        agent.seal()
    return RecordedDevice(disk, len(open_run(folder / "run").table("frames")))


def _acknowledged(agent: Agent) -> Iterator[tuple[type, str, str, Callable[..., int]]]:
    """Yield the methods whose return promises that something is on disk, and the number of it."""
    entries = iter(range(1, 10**6))
    yield Journal, "_append", "entries", lambda *args: next(entries)
    yield Journal, "add", "flushed", lambda *args: _frames_of(agent)
    yield Agent, "_collect_rows", "collected", lambda *args: _frames_of(agent)
    yield Outbox, "put", "queued", lambda box, upload: box._places
    yield Outbox, "done", "sent", lambda box, upload: upload.place
    yield CachedNetwork, "add", "updates", lambda kept, result, fps: result.number


def _frames_of(agent: Agent) -> int:
    return sum(len(chunk["frame"]) for chunk in agent.cell.runner.ledger.rows.get("frames", ()))


def _noted(method: Any, disk: RecordedDisk, kind: str, number: Callable[..., int]) -> Any:
    """Return a method that is acknowledged once it has returned, or before its deletion of something."""

    def called(*args: Any) -> Any:
        if kind == "sent":
            disk.acknowledge(kind, number(*args))
            return method(*args)
        result = method(*args)
        disk.acknowledge(kind, number(*args))
        return result

    return called


def losses_of(device: RecordedDevice, stop: int, dice: random.Random | None, folder: Path) -> Iterator[str]:
    """Write the files that a power cut before an event leaves, or without dice a kill; yield each loss."""
    device.disk.survivors(stop, dice).write(device.disk.folder, folder)
    run = folder / "run"
    if not device.newest("begun", stop):
        return
    read_ticket(run)
    entries = read_entries(run / JOURNAL)
    is_complete = bool(list(run.glob("tables/runs/*.parquet")))
    if is_complete and (frames := len(open_run(run).table("frames"))) != device.frames:
        yield f"the tables have {frames} of {device.frames} frames"
    if not is_complete and len(entries) < device.newest("entries", stop):
        yield f"{device.newest('entries', stop)} entries were on disk, {len(entries)} are left"
    if device.newest("tables", stop):
        if not is_complete:
            yield "the tables are lost"
        return
    (box := Outbox()).open(run)
    if missing := device.numbers("queued", stop) - device.numbers("sent", stop) - {one.place for one in box.waiting}:
        yield f"waiting uploads {missing} are lost"
    results = [result.number for result, _ in CachedNetwork(run).results(FPS)]
    if max(results, default=0) < device.newest("updates", stop):
        yield f"update {device.newest('updates', stop)} was stored, {results} are left"


def kill_losses(device: RecordedDevice, stop: int, folder: Path) -> Iterator[str]:
    """Yield the losses of a kill before an event, and a violation for rows of more than a flush interval."""
    yield from losses_of(device, stop, None, folder)
    collected, flushed = device.newest("collected", stop), device.newest("flushed", stop)
    batch = max(_steps(device.disk.events, "collected"), default=0)  # frames that one inference took
    if not device.newest("tables", stop) and collected - flushed > FLUSH_S * FPS + 2 * batch:
        yield f"{collected - flushed} of {collected} frames were not flushed yet"


def run_device_cuts(seed: int, cuts: int, kills: int) -> tuple[dict[str, object], list[str]]:
    """Cut the power of a recorded device, and kill it; return the totals and the violations."""
    dice, broken = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="driftlab-device-power-") as place:
        (root := Path(place) / "recorded").mkdir()
        (Path(place) / "server").mkdir()
        server = ServerProcess(Path(place) / "server")
        try:
            device = record_device(server.url, TOKEN, root)
        finally:
            server.kill()
        for number in range(cuts + kills):
            stop = dice.randrange(len(device.disk.events) + 1)
            (folder := Path(place) / "cut").mkdir()
            kind = "cut" if number < cuts else "kill"
            found = losses_of(device, stop, dice, folder) if number < cuts else kill_losses(device, stop, folder)
            broken += [f"{kind} {number} of a device before event {stop}: {one}" for one in found]
            shutil.rmtree(folder)
    kept = {kind: device.newest(kind, len(device.disk.events)) for kind in ("collected", "queued", "updates")}
    return {"device_cuts": cuts, "device_kills": kills, "device_events": len(device.disk.events), **kept}, broken


def _steps(events: list[DiskEvent], kind: str) -> list[int]:
    numbers = [one.number for one in events if one.kind == kind]
    return [after - before for before, after in zip([0, *numbers], numbers, strict=False)]
