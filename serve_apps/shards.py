"""Shards of the sessions of a server with several replicas.

The shard of a session follows from its id. A replica locks its shard's file until its process ends. Its replacement
takes the free shard, and opens the sessions from their folders.
"""

from __future__ import annotations

import fcntl
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from driftlab.errors import RunError

LOCK_TIMEOUT_S = 60.0  # for the process of an earlier replica to end
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Shard:
    """A part of the sessions; the default has all of them."""

    number: int = 0
    count: int = 1

    def holds(self, session: str) -> bool:
        """Return whether a session belongs to this shard."""
        return shard_of(session, self.count) == self.number


ALL = Shard()


@dataclass(frozen=True, eq=False)
class LockedShard:
    """A shard that no other process can take until the file is closed."""

    shard: Shard
    file: IO[bytes] | None = None


def shard_of(session: str, count: int) -> int:
    """Return the number of a session's shard."""
    return zlib.crc32(session.encode()) % count


def take_shard(folder: Path, count: int, within_s: float = LOCK_TIMEOUT_S) -> LockedShard:
    """Lock the first free shard of a server's folder; raise RunError if none becomes free in time.

    A single replica has no lock: not every file system has them.
    """
    if count == 1:
        return LockedShard(ALL)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + within_s
    while True:
        for number in range(count):
            file = (folder / f"shard-{number}.lock").open("wb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return LockedShard(Shard(number, count), file)
            except BlockingIOError:
                file.close()
        if time.monotonic() > deadline:
            raise RunError(f"each of the {count} shards in '{folder}' is locked by another process")
        time.sleep(POLL_INTERVAL_S)
