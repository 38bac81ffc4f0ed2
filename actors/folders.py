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
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from driftlab.actors.watchdog import LEAVE_S, MARKER, end_processes
from driftlab.errors import RequestError

SOCKET = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"  # Ray's longest path below its folder
NAME = "12345678"  # as long as the name of a session's folder
SHORT = (Path("/tmp"), Path("/var/tmp"))  # places for Ray's files where those of the temporary folder do not suit it
ADVICE = "Set TMPDIR to a folder of your own on a local disk, with a short path of ASCII letters."


@dataclass(frozen=True)
class SessionFolder:
    """The folder of a Ray that was started here."""

    path: Path
    lock: int  # descriptor of the marker, which is locked until it is closed
    moved: str = ""  # why it is not in the temporary folder

    def remove(self) -> None:
        """End its remaining processes, and remove it."""
        remove_session(self.path)
        os.close(self.lock)


def open_folder() -> SessionFolder:
    """Make and lock a folder for Ray's files, and remove those of killed runs.

    It is in the temporary folder, or in the first short place where that cannot hold Ray's files.
    """
    unfit: list[str] = []
    for place in dict.fromkeys((*_temporary(), *SHORT)):
        try:
            parent = private_parent(place)
            remove_leftovers(parent)
            path, lock = _locked_folder(parent)
        except OSError as error:
            unfit.append(f"'{place}' cannot hold them ({error.strerror or error})")
        else:
            moved = f"Ray's files are in '{parent}', because {' and '.join(unfit)}." if unfit else ""
            return SessionFolder(path, lock, moved)
    raise RequestError(f"Ray's files have no place: {', '.join(unfit)}. {ADVICE}")


def _temporary() -> list[Path]:
    """Return the temporary folder, or nothing where none can be written."""
    with contextlib.suppress(FileNotFoundError):
        return [Path(tempfile.gettempdir())]
    return []


def _locked_folder(parent: Path) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix="", dir=parent))
    try:
        draft = path / f".{secrets.token_hex(4)}"
        lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # first: other runs remove marked folders that are not locked
        draft.rename(path / MARKER)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path, lock


def private_parent(place: Path) -> Path:
    """Find or make the folder of this user's sessions, to which no other user can write.

    An OSError gives the reason why a place cannot hold Ray's files; existing files stay as they are.
    """
    if not str(place).isascii():
        raise OSError("Ray takes paths of ASCII letters only")
    parent = place / f"driftlab-{os.getuid()}"
    _try_socket(place, len(f"{parent.name}/{NAME}{SOCKET}"))
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        what = "a folder of another user" if stat.S_ISDIR(found.st_mode) else "no folder"
        raise OSError(f"its '{parent.name}' is {what}")
    parent.chmod(0o700)
    return parent


def _try_socket(place: Path, letters: int) -> None:
    """Make a socket with a name of this length, and remove it: not every file system can hold sockets."""
    path = place / secrets.token_hex(letters)[:letters]
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(str(path))
        except OSError as error:
            if error.errno is None:  # refused by Python
                raise OSError("too long a path for Ray's sockets") from error
            raise
        finally:
            path.unlink(missing_ok=True)


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
