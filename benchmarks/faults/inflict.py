"""Disturb a run in one process: forked children run it, are disturbed, and resume it."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FORKED_S = 600.0  # limit for an undisturbed child on a busy machine
ERROR = 3
Act = Callable[[], Any]
FaultResult = tuple[str, bool]


def child(act: Act, log: Path) -> int:
    """Run an act in a forked process; return the number of the process."""
    pid = os.fork()
    if pid:
        return pid
    code = ERROR
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    try:
        with log.open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            act()
            code = 0
    except BaseException:
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid: int, within_s: float = FORKED_S) -> int | None:
    """Wait for a child; return its exit code, negative for a signal, or None if it had to be killed."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


class Inflicted:
    """Inflicts faults on the run in one folder.

    Each fault is a method that returns its description and whether it took effect.
    """

    def __init__(self, dice: random.Random, folder: Path, go: Act, span_s: float, log: Path) -> None:
        self._dice, self._folder, self._go, self._span_s, self._log = dice, folder, go, span_s, log

    def kill(self) -> FaultResult:
        """Kill the driver at any moment of the run."""
        after_s = self._span_s * self._dice.random() ** 2  # squared: a resumed run is shorter than a whole one
        code = ended_or_signalled(child(self._go, self._log), after_s, signal.SIGKILL)
        return f"SIGKILL after {after_s:.2f} s ({code})", code != 0

    def interrupt(self) -> FaultResult:
        """Interrupt the driver as Ctrl-C does."""
        after_s = self._span_s * self._dice.random() ** 2  # squared: a resumed run is shorter than a whole one
        code = ended_or_signalled(child(self._go, self._log), after_s, signal.SIGINT)
        return f"SIGINT after {after_s:.2f} s ({code})", code != 0

    def pause(self) -> FaultResult:
        """Stop and continue the driver several times, as on a slow machine."""
        pid, times = child(self._go, self._log), self._dice.randint(1, 4)
        for _ in range(times):
            time.sleep(self._dice.uniform(0, self._span_s / times))
            if _is_running(pid):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._dice.uniform(0.05, 0.5))
                os.kill(pid, signal.SIGCONT)
        return f"{times} pauses ({ended(pid)})", True

    def tear(self) -> FaultResult:
        """Truncate, change, swap or remove a table file of the run."""
        files = sorted(self._folder.rglob("*.parquet"))
        if not files:
            return "nothing to tear", False
        file, how = self._dice.choice(files), self._dice.choice(("cut", "flip", "remove", "empty", "swap"))
        content = file.read_bytes()
        place = self._dice.randrange(len(content)) if content else 0
        if how == "remove":
            file.unlink()
        elif how == "swap":
            file.write_bytes(self._dice.choice(files).read_bytes())
        else:
            bent = bytes([content[place] ^ 1]) if content else b"x"
            file.write_bytes(
                {"cut": content[:place], "flip": content[:place] + bent + content[place + 1 :], "empty": b""}[how]
            )
        return f"{how} {file.relative_to(self._folder)}", True

    def fill(self) -> FaultResult:
        """Limit the size of every file, as a full disk does."""
        most = self._dice.choice((0, 10, 100, 1000, 5000, 20_000))

        def act() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            self._go()

        code = ended(child(act, self._log))
        return f"files end at {most} bytes ({code})", code != 0

    def refuse(self) -> FaultResult:
        """Fail all flushes after a random number of them, as a full disk does."""
        good = self._dice.randint(0, 60)

        def act() -> None:
            sound, left = os.fsync, iter(range(good))

            def fsync(descriptor: int) -> None:
                if next(left, None) is None:
                    raise OSError(errno.ENOSPC, "No space left on device")
                sound(descriptor)

            os.fsync = fsync  # type: ignore[assignment]
            self._go()

        code = ended(child(act, self._log))
        return f"disk full after {good} flushes ({code})", code != 0

    def turn_clock(self) -> FaultResult:
        """Make the wall clock jump by years in both directions, and change the times of files."""
        jumps = [self._dice.uniform(-2e9, 2e9) for _ in range(5)]
        for file in self._folder.rglob("*"):
            os.utime(file, (t := max(0.0, time.time() + self._dice.choice(jumps)), t), follow_symlinks=False)

        def act() -> None:
            sound, calls = time.time, iter(range(2**62))
            time.time = lambda: max(0.0, sound() + jumps[next(calls) % len(jumps)])
            self._go()

        return f"clock off by up to {max(map(abs, jumps)) / 3e7:.0f} years ({ended(child(act, self._log))})", True

    def any_fault(self) -> str:
        """Inflict a random fault; return an indented line, or `missed ...` if it took no effect."""
        often, seldom = (self.kill, self.tear), (self.fill, self.refuse, self.turn_clock, self.pause, self.interrupt)
        make = self._dice.choice(often if self._dice.random() < 0.6 else seldom)
        self._undo()
        outcome, hit = make()
        return f"  {make.__name__}: {outcome}" if hit else f"missed {make.__name__}: {outcome}"

    def _undo(self) -> None:
        """Remove the rows of some cells, so that there is work to disturb."""
        for file in sorted(self._folder.glob("tables/runs/*.parquet")):
            if self._dice.random() < 0.5:
                file.unlink()


def ended_or_signalled(pid: int, after_s: float, number: int) -> int | None:
    """Send a child a signal after a while, unless it has ended by then; return its exit code."""
    deadline = time.monotonic() + after_s
    while time.monotonic() < deadline and _is_running(pid):
        time.sleep(0.002)
    if _is_running(pid):
        os.kill(pid, number)
    return ended(pid)


def _is_running(pid: int) -> bool:
    """Return whether a child runs, without collecting its exit code."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def leftovers(folder: Path) -> Iterator[str]:
    """Name the files in a finished run's folder that do not belong there."""
    known = {"spec.yaml", "run.json", "log.jsonl", ".lock", "report.html", "report.md"}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".parquet" and file.name not in known:
            yield f"left behind: {file.relative_to(folder)}"
