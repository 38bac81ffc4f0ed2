"""Cut the power of a server at random points, and check that nothing acknowledged is missing.

One session is recorded: every file that is written, renamed, deleted and synced. A cut keeps all synced files and
entries of folders; of the others it keeps a random part, so they may be old, torn, empty or absent.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.messages import SampleMessage, decode_results
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.rounds import RoundsWorker
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.sessions import SessionRegistry

FPS, SIZE, UPLOADS, WAIT_S = 4.0, (32, 48), 4, 60.0
ACKS = ("session", "uploads", "results")
TOKEN = "a token of the power cuts"
ASKED = {
    "system": {"name": "ams", "streaming": {"name": "ams", "interval_s": 2.0}},
    "workload": {"name": "streets/running", "duration_s": 600, "fps": FPS, "height": SIZE[0], "width": SIZE[1]},
    "student": {"network": "half", "pretrain_steps": 2},
}


@dataclass(frozen=True)
class DiskEvent:
    """A change of the disk, a sync, or an acknowledgement (`uploads`, `results` or `session`)."""

    kind: str
    path: Path = Path()
    target: Path = Path()  # of a rename
    content: bytes = b""
    number: int = 0  # of the acknowledged upload or result


@dataclass
class RecordedDisk:
    """Records the changes of the files in a folder."""

    folder: Path
    events: list[DiskEvent] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)  # held during a change and its record

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the block ends; the changes are made as well."""
        originals = {name: getattr(Path, name) for name in ("open", "replace", "rename", "unlink", "mkdir")}
        fsync = os.fsync

        def opened(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
            if self.folder in path.parents and mode[0] in "wax":
                self.events.append(DiskEvent("append" if mode[0] == "a" else "write", path))
            return originals["open"](path, mode, *args, **named)

        def replaced(path: Path, target: Path) -> Any:
            with self.lock:
                if self.folder in path.parents:
                    content = path.read_bytes() if path.is_file() else b""
                    self.events.append(DiskEvent("replace", path, Path(target), content))
                return originals["replace"](path, target)

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            with self.lock:
                if self.folder in path.parents:
                    self.events.append(DiskEvent("unlink", path))
                originals["unlink"](path, missing_ok)

        def made(path: Path, *args: Any, **named: Any) -> None:
            with self.lock:
                if self.folder in path.parents and not path.exists():
                    self.events.append(DiskEvent("mkdir", path))
                originals["mkdir"](path, *args, **named)

        def synced(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            with self.lock:
                fsync(handle)
                if path == self.folder or self.folder in path.parents:
                    content = b"" if path.is_dir() else path.read_bytes()
                    if path.is_file():  # another library may have opened it
                        self.events.append(DiskEvent("append", path))
                    self.events.append(DiskEvent("sync", path, content=content))

        changed = {"open": opened, "replace": replaced, "rename": replaced, "unlink": unlinked, "mkdir": made}
        with mock.patch.multiple(Path, **changed), mock.patch.object(os, "fsync", synced):
            yield

    def acknowledge(self, kind: str, number: int = 0) -> None:
        """Record an acknowledgement of the server."""
        self.events.append(DiskEvent(kind, number=number))

    def survivors(self, stop: int, dice: random.Random | None) -> _Disk:
        """Return the disk after a power cut before an event, or without dice after a kill."""
        disk = _Disk()
        for event in self.events[:stop]:
            disk.apply(event)
        disk.cut(dice) if dice is not None else disk.keep()
        return disk


@dataclass
class _Disk:
    """Entries and contents on disk, and the changes that were not synced; None is the content of a folder."""

    entries: dict[Path, int] = field(default_factory=dict)  # number of the file, by path, as programs see them
    contents: dict[int, bytes | None] = field(default_factory=dict)
    kept_entries: dict[Path, int] = field(default_factory=dict)
    kept_contents: dict[int, bytes | None] = field(default_factory=dict)
    waiting: list[dict[Path, int | None]] = field(default_factory=list)  # changed entries; None: deleted

    def apply(self, event: DiskEvent) -> None:
        """Apply a change or a sync."""
        path = event.path
        if event.kind in ("write", "append", "mkdir") and path not in self.entries:
            number = len(self.contents)
            self.contents[number] = None if event.kind == "mkdir" else b""
            self._enter({path: number})
        elif event.kind == "replace" and path in self.entries:
            number = self.entries[path]
            self.contents[number] = event.content
            self._enter({path: None, event.target: number})  # a file system renames completely or not at all
        elif event.kind == "unlink" and path in self.entries:
            self._enter({path: None})
        elif event.kind == "sync" and self.contents.get(self.entries.get(path, -1), None) is not None:
            number = self.entries[path]
            self.contents[number] = self.kept_contents[number] = event.content
        elif event.kind == "sync":
            for changed in [one for one in self.waiting if next(iter(one)).parent == path]:
                self._keep(changed)
            self.waiting = [one for one in self.waiting if next(iter(one)).parent != path]

    def cut(self, dice: random.Random) -> None:
        """Keep a random part of everything that was not synced."""
        for changed in self.waiting:
            if dice.random() < 0.5:
                self._keep(changed)
        for number in set(self.kept_entries.values()):
            content, kept = self.contents[number], self.kept_contents.get(number)
            if content is not None and kept != content and dice.random() < 0.8:
                self.kept_contents[number] = content[: dice.randrange(len(content) + 1)]

    def keep(self) -> None:
        """Keep everything."""
        self.kept_entries, self.kept_contents = dict(self.entries), dict(self.contents)

    def write(self, root: Path, folder: Path) -> None:
        """Write the files that were kept under `root` into a folder."""
        for path, number in sorted(self.kept_entries.items()):
            here = folder / path.relative_to(root)
            if here.parent.is_dir() and self.contents[number] is None:
                here.mkdir(mode=0o700, exist_ok=True)
            elif here.parent.is_dir():
                here.write_bytes(self.kept_contents.get(number) or b"")

    def _enter(self, changed: dict[Path, int | None]) -> None:
        self.waiting.append(changed)
        _set(self.entries, changed)

    def _keep(self, changed: dict[Path, int | None]) -> None:
        _set(self.kept_entries, changed)


def _set(entries: dict[Path, int], changed: dict[Path, int | None]) -> None:
    for path, number in changed.items():
        if number is None:
            entries.pop(path, None)
        else:
            entries[path] = number


def upload(number: int) -> bytes:
    """Return an upload of two frames."""
    times_s = (2.0 * number + 0.25, 2.0 * number + 1.25)
    images = rng_for(0, "power", number).integers(0, 255, (2, *SIZE, 3)).astype(np.uint8)
    sampling = Sampling(times_s, times_s[-1] + 0.5, codec="h264")
    return SampleMessage(number, times_s[-1] + 0.5, sampling, pack(images, "h264").payload).encode(FPS)


def record(folder: Path, uploads: int = UPLOADS) -> RecordedDisk:
    """Play a session on a server whose disk is recorded."""
    disk = RecordedDisk(folder)
    with disk.recording():
        registry = SessionRegistry(folder, TOKEN, Limits())
        name, _ = registry.open(parse_session_request(ASKED))
        disk.acknowledge("session")
        session = registry.sessions[name]
        for number in range(1, uploads + 1):
            disk.acknowledge("uploads", session.upload(upload(number)))
            if number % 2 == 0:  # every other round has two uploads, if the first one waits long enough
                disk.acknowledge("results", _finished(session))
        registry.close()
    return disk


def _finished(session: HostedSession) -> int:
    """Wait until every upload is used, and return the number of the newest result."""
    until_s = time.monotonic() + WAIT_S
    while session.is_busy and time.monotonic() < until_s:
        time.sleep(0.01)
    return session.progress.number


def faults_after(
    disk: RecordedDisk, stop: int, dice: random.Random, folder: Path, worker: RoundsWorker
) -> Iterator[str]:
    """Start a server on the remaining files; yield each loss, and the reason if it cannot continue."""
    name = ""
    known = {kind: max((one.number for one in disk.events[:stop] if one.kind == kind), default=-1) for kind in ACKS}
    disk.survivors(stop, dice).write(disk.folder, folder)
    registry = SessionRegistry(folder, TOKEN, Limits(), workers=[worker])
    try:
        name = next(iter(registry.sessions), "")
        if not name:
            if known["session"] >= 0:
                yield "the session is lost"
            return
        session = registry.sessions[name]
        _finished(session)
        if session.received < known["uploads"]:
            yield f"upload {known['uploads']} was acknowledged, the newest one is {session.received}"
        found = session.results(max(0, known["results"]))
        if found is None:
            yield f"result {known['results']} was sent, the newest one is {session.progress.number}"
        else:
            list(decode_results(found[0], FPS))
        session.upload(upload(session.received + 1))
        _finished(session)
        if session.fault or session.progress.used != session.received:
            yield f"the session cannot continue: {session.fault}"
    finally:
        registry.close()
        worker.drop(folder / name)


def run_power_cuts(seed: int, count: int) -> tuple[dict[str, object], list[str]]:
    """Cut the power at `count` random points; return the totals and the violations."""
    dice, broken = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="driftlab-power-") as place:
        (root := Path(place) / "recorded").mkdir(mode=0o700)
        disk, worker = record(root), RoundsWorker()
        for number in range(count):
            stop = dice.randrange(len(disk.events) + 1)
            (folder := Path(place) / "cut").mkdir(mode=0o700)
            broken += [
                f"cut {number} before event {stop}: {one}" for one in faults_after(disk, stop, dice, folder, worker)
            ]
            shutil.rmtree(folder)
        worker.close()
    return {"benchmark": "field-power", "seed": seed, "cuts": count, "events": len(disk.events)}, broken
