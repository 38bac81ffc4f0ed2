"""A local Ray on this machine: its folder, its watchdog, and checks of its essential processes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil

from driftlab.actors import watchdog
from driftlab.actors.folders import SessionFolder, open_folder
from driftlab.errors import MOST_LINE, BackendLost, shortened

HEADS = {"gcs_server": "control store (gcs_server)", "raylet": "scheduler (raylet)"}
LOG_ERROR = re.compile(r"(?m)^\[[^\]\n]* [EC] [^\]\n]*\] (?:\(\w+\) )?(?:[\w.]+:\d+: )?(?P<said>.+)")
KILLED = "has ended by SIGKILL"
LOG_BYTES = 2**16  # of the end of a log
WATCHDOG_S = 15.0  # for the watchdog to end, after it has killed the remaining processes
log = logging.getLogger(__name__)


class LocalRay:
    """The processes and files of a Ray that was started here."""

    def __init__(self, go_on: str) -> None:
        self._go_on = go_on
        self._heads: dict[int, str] = {}
        self._lost = ""
        self._started = False
        self.folder: SessionFolder = open_folder()
        if self.folder.moved:
            _warn_once(self.folder.moved)
        try:
            self._watchdog = _start_watchdog(self.folder.path)
        except BaseException:
            self.folder.remove()
            raise
        self._leave_word(f"The run's own process has ended before the run. {go_on}")

    @property
    def lost(self) -> bool:
        """Tell whether this Ray has lost an essential process."""
        return bool(self._lost)

    def look(self) -> None:
        """Register this Ray's essential processes as they start, and raise if one has ended."""
        if len(self._heads) < len(HEADS):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.name() in HEADS and child.environ().get(watchdog.MARK) == str(self.folder.path):
                        self._heads[child.pid] = child.name()
        self.check()

    def check(self) -> None:
        """Raise if an essential process has ended early."""
        ended = next(((name, how) for pid, name in self._heads.items() if (how := ending_of(pid))), None)
        if ended is not None and not self._lost:
            name, how = ended
            said = "" if how == KILLED else last_error(self.folder.path / "session_latest/logs", name)
            why = f"{HEADS[name]} {how}; {said or 'something killed it, or memory is short'}"
            if self._started:
                self._lost = f"Ray's {why}, and no cell can go on without it. {self._go_on}"
            else:  # Ray gives up where a process of its own takes 15 s to start
                self._lost = f"Ray did not start on this machine: its {why}, or the machine is busy. {self._go_on}"
            self._leave_word(f"Error: {self._lost}")  # Ray may end this process before it can report the error itself
        if self._lost:
            raise BackendLost(self._lost)

    def started(self) -> None:
        """Learn that Ray answers."""
        self._started = True

    def end_processes(self, leave_s: float) -> None:
        """End all processes of this Ray."""
        watchdog.end_processes(str(self.folder.path), leave_s)

    def close(self) -> None:
        """End the remaining processes, and remove the folder."""
        self._heads.clear()
        self._lost = self._lost or "The run was stopped."  # for threads that still wait
        self.folder.remove()
        self._leave_word("")
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(WATCHDOG_S)

    def _leave_word(self, line: str) -> None:
        """Give the watchdog the message to print if this process cannot."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):  # the watchdog was killed: the run does not depend on it
            text = " ".join(line.splitlines()) + "\n"
            self._watchdog.stdin.write(text.encode(errors="surrogateescape"))  # it may name paths of any encoding
            self._watchdog.stdin.flush()


@cache
def _warn_once(text: str) -> None:
    """Log a warning, however many runs this process makes."""
    log.warning(text)


def _start_watchdog(folder: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog in its own session, out of reach of Ctrl-C, which goes to all processes of a terminal."""
    return subprocess.Popen(
        [sys.executable, watchdog.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def ending_of(pid: int) -> str:
    """Say how a child has ended, and leave its exit status to its owner; nothing while it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "has ended"
    if found is None:
        return ""
    if found.si_code == os.CLD_EXITED:
        return f"has ended with exit code {found.si_status}"
    return f"has ended by {signal.Signals(found.si_status).name}"


def last_error(logs: Path, name: str) -> str:
    """Return the last error in the logs of one of Ray's processes; nothing if there is none."""
    for file in (logs / f"{name}.err", logs / f"{name}.out"):
        with contextlib.suppress(OSError), file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_BYTES))
            if found := LOG_ERROR.findall(log.read().decode(errors="replace")):
                return f"its log says: {shortened(found[-1], MOST_LINE).rstrip('.')}"
    return ""
