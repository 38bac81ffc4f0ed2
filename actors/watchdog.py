"""Ends the processes of a Ray whose driver has ended, by whatever cause.

It runs as a separate process that holds a pipe to the driver, and therefore imports nothing of driftlab. The driver
writes lines: the watchdog prints the last one when the pipe ends, unless it is empty.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import psutil

MARKER = "driftlab-session"  # a file in the folder of a session, locked while its driver lives
MARK = "DRIFTLAB_RAY_SESSION"  # in the environment of every process of a session: the folder of that session
LEAVE_S = 2.0  # for processes to end by themselves
END_S = 10.0  # for new processes to stop appearing


def processes_of(folder: str) -> list[psutil.Process]:
    """Find the processes of a session, except the current one: a driver has its own log files open."""
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and _belongs(each, folder)]


def end_processes(folder: str, leave_s: float = LEAVE_S) -> None:
    """Let a session's processes end, and kill those that do not, until none is left."""
    deadline = time.monotonic() + END_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        for process in psutil.wait_procs(left, timeout=leave_s)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        leave_s = 0.1  # later ones have just been started


def _belongs(process: psutil.Process, folder: str) -> bool:
    """Look for the mark, or for a log file of the session: Ray's agents overwrite their environment.

    The marker is no log file: a process that removes the folder, or checks the lock, has it open.
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
    """Wait for the end of the driver, then end the processes."""
    said = sys.stdin.buffer.read().splitlines()  # bytes, as it may name paths of any encoding
    end_processes(folder)
    if said and said[-1]:
        with contextlib.suppress(OSError):
            os.write(2, said[-1] + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
