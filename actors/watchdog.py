"""End the processes of a local Ray when its driver has ended for any reason.

The watchdog is a separate process at the end of a pipe from the driver; it imports nothing of driftlab, to start fast.
The driver writes lines to the pipe. When the pipe closes, the watchdog prints the last line, unless it is empty.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import psutil

MARKER = "driftlab-session"  # file in the folder of a session, locked while its driver runs
MARK = "DRIFTLAB_RAY_SESSION"  # environment variable of every process of a session: the session's folder
LEAVE_S = 2.0  # for processes to end by themselves
END_TIMEOUT_S = 10.0  # for all processes of a session to end


def processes_of(folder: str) -> list[psutil.Process]:
    """Return the processes of a session, except the current one, which may have its log files open."""
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and _belongs(each, folder)]


def end_processes(folder: str, leave_s: float = LEAVE_S) -> None:
    """Wait `leave_s` for a session's processes to end, then kill the others, until none is left."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while (running := processes_of(folder)) and time.monotonic() < deadline:
        for process in psutil.wait_procs(running, timeout=leave_s)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        leave_s = 0.1  # the remaining ones were started meanwhile


def _belongs(process: psutil.Process, folder: str) -> bool:
    """Return whether a process has the mark of a session, or a log file of it open.

    Ray's agents overwrite their environment, so the mark is not enough. An open marker does not count: any process that
    checks the lock or deletes the folder opens it.
    """
    try:
        environment = process.environ()
        if environment:
            return bool(environment.get(MARK) == folder)
        opened = {file.path for file in process.open_files()} - {f"{folder}/{MARKER}"}
        return any(path.startswith(f"{folder}/") for path in opened)
    except (psutil.Error, OSError):
        return False


def main(folder: str) -> None:
    """Wait until the driver ends, then end the processes and print its last line."""
    lines = sys.stdin.buffer.read().splitlines()  # bytes: paths may have any encoding
    end_processes(folder)
    if lines and lines[-1]:
        with contextlib.suppress(OSError):
            os.write(2, lines[-1] + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
