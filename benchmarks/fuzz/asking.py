"""Ask the command line within this process, and judge the answer by what it promises."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.fuzz.grammar import INLINE, Request
from driftlab.cli import app

ANSWER_S = 10.0
PATIENCE_S = 60.0  # before an answer is broken off
STEPS, FRAMES, CELLS = 50, 60, 6  # what a run may cost that is run
REFUSED, FAILED, GOOD = 2, 1, 0
WRONG = re.compile("^Error: ", re.MULTILINE)


class TooLate(BaseException):
    """Raised within a command that does not come back."""


@dataclass(frozen=True)
class Answer:
    """What a command said, and how long it took."""

    words: tuple[str, ...]
    code: int | None  # none: it did not end by itself
    output: str
    error: str
    took_s: float
    cpu_s: float = 0.0  # of this process
    ran: bool = False  # whether it was to run cells, which may take longer

    def faults(self) -> Iterator[str]:
        """Name every promise that the answer breaks."""
        if self.ran and self.took_s > PATIENCE_S:
            return  # broken off: it is only long
        if "Traceback (most" in self.error + self.output:
            yield "a traceback"
        if self.code not in (GOOD, FAILED, REFUSED):
            yield f"exit code {self.code}"
        if self.code == REFUSED and not self.ran and not self.error.startswith(("Error: ", "Usage: ")):
            yield "a refusal that does not begin with what is wrong"
        if self.code == REFUSED and (len(WRONG.findall(self.error)) != 1 or len(self.error) > 20_000):
            yield "a refusal that is not one message"
        if (
            self.code == FAILED
            and "FAILED" not in self.output
            and "Error: " not in self.error
            and "diff" not in self.words
        ):
            yield "a failure without a reason"
        busy = self.cpu_s > ANSWER_S / 4 or self.took_s > PATIENCE_S  # else the machine was
        if self.took_s > ANSWER_S and busy and not self.ran:
            yield f"an answer after {self.took_s:.1f} s"


def ask(words: Sequence[str], folder: Path) -> Answer:
    """Call the command in this process, in a folder of its own."""
    output, error = io.StringIO(), io.StringIO()
    argv, here = sys.argv, Path.cwd()
    code: int | None = None
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
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
    return Answer(
        tuple(words),
        code,
        output.getvalue(),
        error.getvalue(),
        time.monotonic() - begun_s,
        time.process_time() - begun_cpu_s,
    )


def ask_process(words: Sequence[str], folder: Path) -> Answer:
    """Call the command as a user does."""
    begun_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "driftlab", *words],
            cwd=folder, capture_output=True, timeout=2 * PATIENCE_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(tuple(words), None, "", "", time.monotonic() - begun_s)
    texts = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return Answer(tuple(words), done.returncode, *texts, time.monotonic() - begun_s)


def answers(request: Request, folder: Path, *, process: bool = False) -> Iterator[Answer]:
    """Ask; of a run that is sound and small, ask for its plan and then run it."""
    asked = ask_process if process else ask
    first = asked((*request.words, *request.limits), folder)
    yield replace(first, ran=request.runs and not request.limits)
    if request.runs and request.limits and first.code == GOOD and _is_small(request):
        yield replace(asked((*request.words, *INLINE, "--out", str(folder / "made")), folder), ran=True)


def _is_small(request: Request) -> bool:
    """Tell whether a sound run takes a second or two."""
    from driftlab.errors import RequestError
    from driftlab.platform.request.experiment import load
    from driftlab.platform.request.size import size_of

    try:
        overrides = [after for word, after in zip(request.words, request.words[1:], strict=False) if word == "--set"]
        spec = load(request.words[1], overrides)
    except RequestError:
        return False
    size = size_of(spec)
    small = size.steps <= STEPS and size.frames <= FRAMES and size.cells <= CELLS and spec.clock == "virtual"
    return small and all(work <= STEPS for work in _work(spec.model_dump()["systems"]))


def _work(part: Any) -> Iterator[float]:
    """List the numbers of steps, epochs and pictures that members are told."""
    for key, value in (
        part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list | tuple) else ()
    ):
        if isinstance(value, int | float) and key in ("iterations", "batch", "prune_epochs", "grow_epochs", "epochs"):
            yield value
        yield from _work(value)


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLate
