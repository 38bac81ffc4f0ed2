"""The rows and accounts of a device in a file, from which a killed device continues.

An entry is appended every few seconds, and then is on disk. Reading stops at the first incomplete or
damaged one, which a power cut leaves.
"""

from __future__ import annotations

import os
import queue
import struct
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftlab.errors import DataError, RequestError, WireError
from driftlab.platform.core.files import sync
from driftlab.platform.field.state_file import dump_objects, load_objects
from driftlab.platform.sim.ledger import Account, Ledger

FILE = "journal"  # next to the tables, until they are written
FLUSH_S = 5.0  # between two entries
HEAD = struct.Struct("<4sII")  # magic, bytes, CRC-32
MAGIC = b"dj01"
FIX = "Resume the device by the version of driftlab that wrote it."
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # changes when the computer starts


@dataclass(frozen=True)
class Clocks:
    """Several clocks at one moment, by which a restarted device finds its position in the stream."""

    stream_s: float
    wall_s: float
    boot: str  # identity of the computer's start; empty: unknown
    boot_s: float  # seconds since then
    server_s: float | None  # of the server; None: it did not reply

    @classmethod
    def read(cls, stream_s: float, server_s: float | None) -> Clocks:
        """Return the clocks of this moment."""
        try:
            boot = BOOT_ID.read_text("ascii").strip()
        except OSError:
            boot = ""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return cls(
            stream_s, time.time(), boot, time.monotonic() if clock is None else time.clock_gettime(clock), server_s
        )

    def elapsed_s(self, now: Clocks) -> tuple[float, str]:
        """Return the seconds until a later moment, and the clock that they were read from."""
        if self.boot and self.boot == now.boot:
            return max(0.0, now.boot_s - self.boot_s), "this computer"
        if self.server_s is not None and now.server_s is not None:
            return max(0.0, now.server_s - self.server_s), "the server"
        return max(0.0, now.wall_s - self.wall_s), "the date of this computer"


@dataclass(frozen=True)
class JournalEntry:
    """The rows since the last entry, and the state of the device's accounts."""

    clocks: Clocks
    rows: dict[str, list[Any]]
    account: Account
    messages: dict[str, int]  # sent in each direction
    outcomes: dict[int, Any]  # of updates, by number


@dataclass
class Journal:
    """Appends entries in a separate thread, as a slow disk must not delay inference."""

    path: Path
    written: dict[str, int] = field(default_factory=dict)  # chunks of each table
    _queue: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)

    def skip(self, ledger: Ledger) -> None:
        """Count the rows of a ledger as written."""
        self.written = {name: len(chunks) for name, chunks in ledger.rows.items()}

    def add(self, clocks: Clocks, ledger: Ledger, *state: Any) -> None:
        """Queue the rows that were added to a ledger since the last call, and the state of an entry."""
        new = {name: list(chunks[self.written.get(name, 0) :]) for name, chunks in ledger.rows.items()}
        self.skip(ledger)
        self._queue.put(
            dump_objects(JournalEntry(clocks, {name: chunks for name, chunks in new.items() if chunks}, *state))
        )

    def run(self) -> None:
        """Append queued entries until `close`."""
        while (data := self._queue.get()) is not None:
            self._append(data)

    def close(self) -> None:
        """End `run` once all entries are on disk."""
        self._queue.put(None)

    def _append(self, data: bytes) -> None:
        is_new = not self.path.exists()
        try:
            with self.path.open("ab") as sink:
                sink.write(HEAD.pack(MAGIC, len(data), zlib.crc32(data)) + data)
                sink.flush()
                os.fsync(sink.fileno())
            if is_new:
                sync(self.path.parent)
        except OSError as error:
            raise DataError(f"Rows cannot be written to '{self.path}': {error.strerror}.") from error


def read_entries(path: Path) -> list[JournalEntry]:
    """Return the complete entries of a journal, and cut off the rest; refuse one of another version."""
    data = path.read_bytes() if path.exists() else b""
    start, entries = 0, []
    while start + HEAD.size <= len(data):
        magic, size, check = HEAD.unpack_from(data, start)
        if magic != MAGIC and magic[:2] == MAGIC[:2]:
            raise RequestError(f"'{path}' has another format. {FIX}")
        body = data[start + HEAD.size : start + HEAD.size + size]
        if magic != MAGIC or len(body) != size or zlib.crc32(body) != check:
            break
        try:
            entries.append(load_objects(body))
        except WireError as error:
            raise RequestError(f"'{path}' cannot be read: {error}. {FIX}") from error
        start += HEAD.size + size
    if start < len(data):
        os.truncate(path, start)
        sync(path)
    return entries
