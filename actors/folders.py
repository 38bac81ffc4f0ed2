"""The folders of Ray's sessions: private, locked while their driver lives, and removed after it.

All are in one folder of this user. A session's folder holds a file that its driver keeps locked. The file marks the
folder as ours, and its lock tells whether the driver still lives, in this container or in another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from driftlab.actors.watchdog import LEAVE_S, end_processes
from driftlab.errors import RequestError

MARKER = "driftlab-session"
SOCKET = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"  # Ray's longest path below its folder
SOCKET_BYTES = 107  # the longest path of a socket


@dataclass(frozen=True)
class SessionFolder:
    """The folder of a Ray that was started here."""

    path: Path
    lock: int  # descriptor of the marker, which is locked until it is closed

    def remove(self) -> None:
        """End its remaining processes, and remove it."""
        remove_session(self.path)
        os.close(self.lock)


def open_folder() -> SessionFolder:
    """Make and lock a folder for Ray's files, and remove those of killed runs."""
    parent = private_parent()
    remove_leftovers(parent)
    path = Path(tempfile.mkdtemp(prefix="", dir=parent))
    draft = path / f".{secrets.token_hex(4)}"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # before it marks the folder: other runs remove marked folders that are not locked
    draft.rename(path / MARKER)
    return SessionFolder(path, lock)


def private_parent() -> Path:
    """Find or make the folder of this user's sessions, to which no other user can write."""
    parent = Path(tempfile.gettempdir()) / f"driftlab-{os.getuid()}"
    if len(os.fsencode(parent / "12345678")) + len(SOCKET) >= SOCKET_BYTES:
        raise RequestError(
            f"'{tempfile.gettempdir()}' is too long a path for Ray's sockets; set TMPDIR to a shorter one."
        )
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        what = "a folder of another user" if stat.S_ISDIR(found.st_mode) else "no folder"
        raise RequestError(
            f"Ray's files belong in '{parent}', which is {what}; remove it, or set TMPDIR to another place."
        )
    parent.chmod(0o700)
    return parent


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of sessions whose driver has ended."""
    for folder in parent.iterdir():
        if folder.is_symlink() or (lock := _take(folder / MARKER)) is None:
            continue
        try:
            remove_session(folder)
        finally:
            os.close(lock)


def _take(marker: Path) -> int | None:
    """Lock a marker; None if it is not a file of ours or its owner lives."""
    try:
        lock = os.open(marker, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def remove_session(folder: Path, leave_s: float = LEAVE_S) -> None:
    """End the remaining processes of a local Ray, even if its head died first, and remove its files."""
    end_processes(str(folder), leave_s)
    with contextlib.suppress(OSError):  # another process has removed it
        for part in folder.iterdir():
            if part.name != MARKER:  # removed last: an interrupted removal is still recognised
                shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
    shutil.rmtree(folder, ignore_errors=True)
