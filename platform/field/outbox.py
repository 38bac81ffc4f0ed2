"""Uploads that wait for the server; the device's disk has them too, for a device that is killed.

If too many wait, the oldest is dropped, but never the one that is being sent: the server may have it already.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from driftlab.errors import WireError
from driftlab.platform.core.files import make_folder, sync, write_atomically
from driftlab.platform.core.records import Uploaded
from driftlab.platform.field.state_file import dump_objects, load_objects
from driftlab.platform.streaming.base import Sampling

FOLDER = "outbox"  # next to the tables
MAX_WAITING, MAX_WAITING_BYTES = 16, 32 * 2**20


@dataclass(frozen=True)
class WaitingUpload:
    """Encoded samples, and the number of the upload once it is being sent."""

    sampling: Sampling
    sent: Uploaded
    payload: bytes
    runs: int | None  # number of the network that the device runs
    queued_s: float
    number: int | None = None
    place: int = 0  # in order of queueing; names the file


@dataclass
class Outbox:
    """A bounded queue of uploads for one sending thread."""

    folder: Path | None = None  # None: in memory only
    _waiting: deque[WaitingUpload] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _places: int = 0

    def open(self, folder: Path) -> None:
        """Store uploads in a folder from now on; those of a killed device wait first."""
        self.folder = folder / FOLDER
        make_folder(self.folder)
        for file in sorted(self.folder.glob("[0-9]*")):
            try:
                stored: WaitingUpload = load_objects(file.read_bytes())
            except WireError:  # of another version
                file.unlink()
                continue
            number = file.suffix[1:]
            self._waiting.append(replace(stored, number=int(number) if number else None))
            self._places = stored.place

    def put(self, upload: WaitingUpload) -> list[WaitingUpload]:
        """Add an upload; return the oldest ones, which it displaces."""
        dropped = []
        with self._changed:
            self._places += 1
            upload = replace(upload, place=self._places)
            if self.folder is not None:
                write_atomically(self._file(upload), dump_objects(upload))
            self._waiting.append(upload)
            while self._is_full() and (oldest := next((one for one in self._waiting if one.number is None), upload)):
                dropped.append(oldest)
                self._remove(oldest)
            self._changed.notify_all()
        return dropped

    def first(self, wait_s: float) -> WaitingUpload | None:
        """Return the oldest upload; wait up to `wait_s` for one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting), wait_s)
            return self._waiting[0] if self._waiting else None

    def begin(self, upload: WaitingUpload, number: int) -> WaitingUpload:
        """Give the oldest upload the number with which it is sent, also after a restart."""
        with self._changed:
            numbered = replace(upload, number=number)
            if self.folder is not None:
                self._file(upload).rename(self._file(numbered))
                sync(self.folder)
            self._waiting[self._waiting.index(upload)] = numbered
        return numbered

    def done(self, upload: WaitingUpload) -> None:
        """Remove an upload that the server has."""
        with self._changed:
            self._remove(upload)

    @property
    def waiting(self) -> list[WaitingUpload]:
        """Return all uploads, oldest first."""
        with self._changed:
            return list(self._waiting)

    def _is_full(self) -> bool:
        size = sum(len(one.payload) for one in self._waiting)
        return len(self._waiting) > 1 and (len(self._waiting) > MAX_WAITING or size > MAX_WAITING_BYTES)

    def _remove(self, upload: WaitingUpload) -> None:
        self._waiting.remove(upload)
        if self.folder is not None:
            self._file(upload).unlink(missing_ok=True)

    def _file(self, upload: WaitingUpload) -> Path:
        assert self.folder is not None
        return self.folder / (f"{upload.place:08d}" + ("" if upload.number is None else f".{upload.number}"))
