"""Run the command line in this process or in a child, and check the result against the rules."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.fuzz.grammar import INLINE, Request
from driftlab.cli import app

COMMAND_LIMIT_S = 10.0
PATIENCE_S = 90.0  # before a command is interrupted
STEPS, FRAMES, CELLS = 50, 60, 6  # limits of a run that is executed
REFUSED, FAILED, GOOD = 2, 1, 0
OPENING = "Opening a session. The server trains the network if it is not cached, which takes a minute or more.\n"
WRONG = re.compile("^Error: ", re.MULTILINE)


class TooLate(BaseException):
    """Raised within a command that exceeds the time limit."""


@dataclass(frozen=True)
class CommandResult:
    """Output and duration of a command."""

    words: tuple[str, ...]
    code: int | None  # none: it did not end by itself
    output: str
    error: str
    took_s: float
    waited_s: float = 0.0  # without a processor, since other processes had it
    ran: bool = False  # whether it executed cells, which may take longer

    def faults(self) -> Iterator[str]:
        """Name every rule that the result violates."""
        if self.ran and self.took_s > PATIENCE_S:
            return  # interrupted: a long run is no violation
        if "Traceback (most" in self.error + self.output:
            yield "a traceback"
        if self.code not in (GOOD, FAILED, REFUSED):
            yield f"exit code {self.code}"
        if self.code == REFUSED:
            yield from self._faults_of_refusal()
        if (
            self.code == FAILED
            and "FAILED" not in self.output
            and "Error: " not in self.error
            and "diff" not in self.words
        ):
            yield "a failure without a reason"
        if self.busy_s > COMMAND_LIMIT_S and not self.ran:
            yield f"a result after {self.busy_s:.1f} s"

    def _faults_of_refusal(self) -> Iterator[str]:
        message = self.error.removeprefix(OPENING)
        if not self.ran and not message.startswith(("Error: ", "Usage: ")):
            yield "a refusal that does not begin with the fault"
        if not self.words:
            return  # without words the command prints its help
        if len(WRONG.findall(message)) != 1 or len(message) > 20_000:
            yield "a refusal that is not one message"

    @property
    def busy_s(self) -> float:
        """Return the duration without the time that other processes took."""
        return self.took_s - self.waited_s


def run_inline(words: Sequence[str], folder: Path) -> CommandResult:
    """Run the command in this process, with a working folder."""
    output, error = io.StringIO(), io.StringIO()
    argv, here = sys.argv, Path.cwd()
    code: int | None = None
    begun_s, waited_s = time.monotonic(), _waited_s("thread-self")
    sys.argv = ["driftlab", *words]
    os.chdir(folder)
    before = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, 1.0)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            try:
                app.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else FAILED
            except BaseException:
                error.write(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = argv
        os.chdir(here)
    return CommandResult(
        tuple(words),
        code,
        output.getvalue(),
        error.getvalue(),
        time.monotonic() - begun_s,
        _waited_s("thread-self") - waited_s,
    )


def run_process(words: Sequence[str], folder: Path) -> CommandResult:
    """Run the command in a child process, as a user does."""
    begun_s, command = time.monotonic(), [sys.executable, "-m", "driftlab", *words]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=error)
        while (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() - begun_s > 2 * PATIENCE_S:
                process.kill()
            time.sleep(0.01)
        waited_s = _waited_s(str(process.pid))  # which can be read until `wait`
        code = process.wait() if ended.si_code == os.CLD_EXITED else None
        texts = []
        for file in (output, error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return CommandResult(tuple(words), code, *texts, time.monotonic() - begun_s, waited_s)


def _waited_s(process: str) -> float:
    """Return how long the main thread of a process waited for a processor; 0 if not known."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def run_request(request: Request, folder: Path, *, process: bool = False, run: bool = True) -> Iterator[CommandResult]:
    """Run a request; then execute it if it only planned a valid small run and `run` is set."""
    run_command = run_process if process else run_inline
    first = run_command((*request.words, *request.limits), folder)
    yield replace(first, ran=request.runs and not request.limits)
    if run and request.runs and request.limits and first.code == GOOD and _is_small(request):
        yield replace(run_command((*request.words, *INLINE, "--out", str(folder / "made")), folder), ran=True)


def _is_small(request: Request) -> bool:
    """Return whether a valid run takes only a second or two."""
    from driftlab.errors import RequestError
    from driftlab.platform.lab.read import load
    from driftlab.platform.lab.size import size_of

    try:
        overrides = [after for word, after in zip(request.words, request.words[1:], strict=False) if word == "--set"]
        spec = load(request.words[1], overrides)
    except RequestError:
        return False
    size = size_of(spec)
    small = size.steps <= STEPS and size.frames <= FRAMES and size.cells <= CELLS and spec.clock == "virtual"
    return small and all(work <= STEPS for work in _work(spec.model_dump()["systems"]))


def _work(part: Any) -> Iterator[float]:
    """Yield the numbers of steps, epochs and images in the settings of members."""
    for key, value in (
        part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list | tuple) else ()
    ):
        if isinstance(value, int | float) and key in ("iterations", "batch", "prune_epochs", "grow_epochs", "epochs"):
            yield value
        yield from _work(value)


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLate
