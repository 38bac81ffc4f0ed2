"""Shards of the sessions of a server with several replicas.

The shard of a session follows from its id, and the replica of a shard from the names of all replicas that live: each
shard has the replica with the highest hash of both names, so a new replica takes only the shards that it will hold. A
replica locks a file while it lives, and a file of each shard that it holds. It gives a shard back by closing the
sessions and then the file; the next replica locks the file and opens the sessions from their folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Protocol

COUNT = 256  # shards of a server with several replicas
INTERVAL_S = 0.5  # between looks at the files
PREFIX, SUFFIX = "replica-", ".lock"  # of the file of a replica
SOCKET = ".sock"  # of the file on which a replica receives connections
SESSIONS = "/sessions/"  # begins the path of a session's routes


class Shards(Protocol):
    """The sessions that a process hosts."""

    def holds(self, session: str) -> bool:
        """Return whether this process hosts a session, or would."""

    @property
    def share(self) -> float:
        """Return the part of all sessions that this process hosts."""


class AllShards:
    """Hosts every session, without a lock: not every file system has them."""

    share = 1.0

    def holds(self, session: str) -> bool:
        return True


def shard_of(session: str) -> int:
    """Return the number of a session's shard."""
    return zlib.crc32(session.encode()) % COUNT


def session_of(path: str) -> str | None:
    """Return the session in a path; None for routes of no session."""
    return path.removeprefix(SESSIONS).partition("/")[0] if path.startswith(SESSIONS) else None


def shard_of_request(path: str, method: str | None) -> int | None:
    """Return the shard of a request; None for one that opens a session, which every replica may do.

    Other requests without a session are those of shard 0.
    """
    session = session_of(path)
    if session is not None:
        return shard_of(session)
    return None if (path, method) == ("/sessions", "POST") else 0


def replica_of(shard: int, replicas: Collection[str]) -> str:
    """Return the replica that is to hold a shard."""
    return max(replicas, key=lambda name: hashlib.sha256(f"{name}/{shard}".encode()).digest())


class HeldShards:
    """The shards of a replica; a thread takes those that are its own, and gives the others back."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name, self.held = secrets.token_hex(8), frozenset[int]()
        self.folder, self._files = folder, dict[int, IO[bytes]]()
        self._own = self._join()
        self._living = [self.name]
        self._stop = threading.Event()
        self.thread: threading.Thread | None = None

    def holds(self, session: str) -> bool:
        return shard_of(session) in self.held

    def owner_of(self, shard: int) -> str:
        """Return the replica that is to hold a shard."""
        return replica_of(shard, self._living)

    @property
    def share(self) -> float:
        return len(self.held) / COUNT

    @property
    def numbers(self) -> list[int]:
        """List the shards that this replica holds."""
        return sorted(self.held)

    @property
    def is_working(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def replicas(self) -> list[str]:
        """List the replicas that live, and delete the files of the others."""
        found = []
        for file in sorted(self.folder.glob(f"{PREFIX}*{SUFFIX}")):
            name = file.name.removeprefix(PREFIX).removesuffix(SUFFIX)
            if name == self.name:
                continue
            if _is_free(file):
                for left in (file.with_suffix(SOCKET), file):
                    left.unlink(missing_ok=True)
            else:
                found.append(name)
        return sorted((self.name, *found))

    def start(self, opened: Callable[[int], None], closed: Callable[[int], None]) -> None:
        """Follow the files; call `opened` after a shard is locked, and `closed` before it is free."""
        self.step(opened, closed)
        self.thread = threading.Thread(target=self._follow, args=(opened, closed), name="shards", daemon=True)
        self.thread.start()

    def step(self, opened: Callable[[int], None], closed: Callable[[int], None]) -> None:
        """Give back the shards of other replicas, then take its own that are free."""
        self._living = self.replicas()
        own = {number for number in range(COUNT) if self.owner_of(number) == self.name}
        for number in sorted(self.held - own):
            self.held -= {number}  # from now on its requests are refused
            closed(number)
            self._files.pop(number).close()
        for number in sorted(own - self.held):
            if self._lock(number):
                opened(number)
                self.held |= {number}

    def close(self) -> None:
        """Leave; the sessions must be closed already."""
        self._stop.set()
        if self.thread is not None:
            self.thread.join()
        self.held = frozenset()
        for file in (*self._files.values(), self._own):
            file.close()

    def _follow(self, *calls: Callable[[int], None]) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.step(*calls)

    def _join(self) -> IO[bytes]:
        """Lock the file of this replica under another name, so that no other one deletes it before."""
        path = self.folder / f"{PREFIX}{self.name}{SUFFIX}"
        file = path.with_suffix(".new").open("wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(file.name, path)
        return file

    def _lock(self, number: int) -> bool:
        if number in self._files:
            return True
        file = (self.folder / f"shard-{number}.lock").open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._files[number] = file
        return True


def _is_free(path: Path) -> bool:
    """Return whether no process holds the lock of a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
