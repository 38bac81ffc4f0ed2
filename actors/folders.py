"""Folders for the files of local Rays: private, locked while the driver runs, and deleted afterwards.

All are in one parent folder per user. Each has a marker file, which identifies it as driftlab's. The driver keeps the
marker locked, so other processes can see whether it still runs, also across containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from driftlab.actors.watchdog import LEAVE_S, MARKER, end_processes
from driftlab.errors import RequestError

SOCKET = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"  # longest path of Ray in its folder
NAME = "12345678"  # as long as the name of a session's folder
SHORT = (Path("/tmp"), Path("/var/tmp"))  # used if the temporary folder is unsuitable
ADVICE = "Set TMPDIR to a private folder on a local disk, with a short path of ASCII letters."


@dataclass(frozen=True)
class SessionFolder:
    """The folder of a local Ray."""

    path: Path
    lock: int  # descriptor of the marker; closing it releases the lock
    moved: str = ""  # reason why it is not in the temporary folder

    def remove(self) -> None:
        """End the remaining processes of its Ray, and delete it."""
        remove_session(self.path)
        os.close(self.lock)


def open_folder() -> SessionFolder:
    """Create and lock a folder for Ray's files, and delete the folders of killed runs.

    It is in the temporary folder, or in the first suitable folder of `SHORT` if that is unsuitable.
    """
    reasons: list[str] = []
    for place in dict.fromkeys((*_temporary(), *SHORT)):
        try:
            parent = private_parent(place)
            remove_leftovers(parent)
            path, lock = _locked_folder(parent)
        except OSError as error:
            reasons.append(f"'{place}' cannot hold them ({error.strerror or error})")
        else:
            moved = f"Ray's files are in '{parent}', because {' and '.join(reasons)}." if reasons else ""
            return SessionFolder(path, lock, moved)
    raise RequestError(f"Ray's files have no place: {', '.join(reasons)}. {ADVICE}")


def _temporary() -> list[Path]:
    """Return a list with the temporary folder, empty if none is writable."""
    with contextlib.suppress(FileNotFoundError):
        return [Path(tempfile.gettempdir())]
    return []


def _locked_folder(parent: Path) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix="", dir=parent))
    try:
        draft = path / f".{secrets.token_hex(4)}"
        lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # before the rename: other runs delete marked folders without a lock
        draft.rename(path / MARKER)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path, lock


def private_parent(place: Path) -> Path:
    """Return the parent folder of this user's sessions, writable by this user only; create it if missing.

    Raise OSError with the reason if the place is unsuitable for Ray's files; existing files are not changed.
    """
    if not str(place).isascii():
        raise OSError("Ray accepts paths of ASCII letters only")
    parent = place / f"driftlab-{os.getuid()}"
    _try_socket(place, len(f"{parent.name}/{NAME}{SOCKET}"))
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    info = parent.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        kind = "a folder of another user" if stat.S_ISDIR(info.st_mode) else "no folder"
        raise OSError(f"its '{parent.name}' is {kind}")
    parent.chmod(0o700)
    return parent


def _try_socket(place: Path, letters: int) -> None:
    """Create and delete a socket with a name of this length: some file systems do not support sockets."""
    path = place / secrets.token_hex(letters)[:letters]
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(str(path))
        except OSError as error:
            if error.errno is None:  # raised by Python for a path above the limit
                raise OSError("too long a path for Ray's sockets") from error
            raise
        finally:
            path.unlink(missing_ok=True)


def remove_leftovers(parent: Path) -> None:
    """Delete the folders of sessions whose driver has ended."""
    for folder in parent.iterdir():
        if folder.is_symlink() or (lock := _take_lock(folder / MARKER)) is None:
            continue
        try:
            remove_session(folder)
        finally:
            os.close(lock)


def _take_lock(marker: Path) -> int | None:
    """Return the descriptor of a locked marker; None if it is no regular file or its driver runs."""
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
    """End the remaining processes of a local Ray, with or without its head, and delete its files."""
    end_processes(str(folder), leave_s)
    with contextlib.suppress(OSError):  # another process has deleted it
        for part in folder.iterdir():
            if part.name != MARKER:  # deleted last: after an interruption the folder is still recognised
                shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
    shutil.rmtree(folder, ignore_errors=True)
