"""A Ray on this computer: its folder, its watchdog, and checks of its essential processes."""

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
from driftlab.errors import MAX_LINE, BackendLost, shortened

HEADS = {"gcs_server": "control store (gcs_server)", "raylet": "scheduler (raylet)"}
LOG_ERROR = re.compile(r"(?m)^\[[^\]\n]* [EC] [^\]\n]*\] (?:\(\w+\) )?(?:[\w.]+:\d+: )?(?P<message>.+)")
KILLED = "has ended by SIGKILL"
LOG_BYTES = 2**16  # read from the end of a log
WATCHDOG_TIMEOUT_S = 15.0  # for the watchdog to kill the remaining processes and end
log = logging.getLogger(__name__)


class LocalRay:
    """The processes and files of a local Ray."""

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
        self._set_last_words(f"The run's own process has ended before the run. {go_on}")

    @property
    def lost(self) -> bool:
        """Return whether this Ray has lost an essential process."""
        return bool(self._lost)

    def find_heads(self) -> None:
        """Register the essential processes that have started, and raise BackendLost if one has ended."""
        if len(self._heads) < len(HEADS):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.name() in HEADS and child.environ().get(watchdog.MARK) == str(self.folder.path):
                        self._heads[child.pid] = child.name()
        self.check()

    def check(self) -> None:
        """Raise BackendLost if an essential process has ended."""
        ended = next(((name, how) for pid, name in self._heads.items() if (how := ending_of(pid))), None)
        if ended is not None and not self._lost:
            name, how = ended
            logged = "" if how == KILLED else last_error(self.folder.path / "session_latest/logs", name)
            why = f"{HEADS[name]} {how}; {logged or 'it was killed, or memory is short'}"
            if self._started:
                self._lost = f"Ray's {why}, and no cell can go on without it. {self._go_on}"
            else:  # Ray ends if one of its processes takes more than 15 s to start
                self._lost = f"Ray did not start on this machine: its {why}, or the machine is busy. {self._go_on}"
            self._set_last_words(f"Error: {self._lost}")  # Ray may end this process before it reports the error
        if self._lost:
            raise BackendLost(self._lost)

    def started(self) -> None:
        """Record that Ray has started; a later loss is reported as one during the run."""
        self._started = True

    def end_processes(self, leave_s: float) -> None:
        """End all processes of this Ray; kill those that run longer than `leave_s`."""
        watchdog.end_processes(str(self.folder.path), leave_s)

    def close(self) -> None:
        """End the remaining processes, and delete the folder."""
        self._heads.clear()
        self._lost = self._lost or "The run was stopped."  # the error of threads that still wait
        self.folder.remove()
        self._set_last_words("")
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(WATCHDOG_TIMEOUT_S)

    def _set_last_words(self, line: str) -> None:
        """Send the watchdog the line that it prints when this process ends; empty: none."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):  # the watchdog was killed; the run works without it
            text = " ".join(line.splitlines()) + "\n"
            self._watchdog.stdin.write(text.encode(errors="surrogateescape"))  # paths may have any encoding
            self._watchdog.stdin.flush()


@cache
def _warn_once(text: str) -> None:
    """Log a warning once per process."""
    log.warning(text)


def _start_watchdog(folder: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog in its own session: Ctrl-C is sent to all processes of the terminal's session."""
    return subprocess.Popen(
        [sys.executable, watchdog.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def ending_of(pid: int) -> str:
    """Describe the exit of a child process without reaping it; empty while it runs."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "has ended"
    if info is None:
        return ""
    if info.si_code == os.CLD_EXITED:
        return f"has ended with exit code {info.si_status}"
    return f"has ended by {signal.Signals(info.si_status).name}"


def last_error(logs: Path, name: str) -> str:
    """Quote the last error in the logs of one of Ray's processes; empty if there is none."""
    for file in (logs / f"{name}.err", logs / f"{name}.out"):
        with contextlib.suppress(OSError), file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_BYTES))
            if messages := LOG_ERROR.findall(log.read().decode(errors="replace")):
                return f"its log says: {shortened(messages[-1], MAX_LINE).rstrip('.')}"
    return ""
