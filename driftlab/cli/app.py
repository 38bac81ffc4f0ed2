"""The `driftlab` command: its common options, its groups of commands, and what its exit codes mean."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer

from driftlab import __version__
from driftlab.cli import catalogue, doctor, field, results, run, tune
from driftlab.cli.output import remark, say
from driftlab.errors import DriftlabError, RequestError

FAILED = 1  # the run failed, or the comparison differs
WRONG_REQUEST = 2
LEAVE_S = 1.0  # for threads to notice that a run is over
CLEAR_LINE = b"\r\x1b[2K"
STOPPING = b"Stopping: ending what was started; what is finished is kept.\n"


def build_app() -> typer.Typer:
    """Put the commands together; what they need is imported when they run."""
    app = typer.Typer(
        name="driftlab",
        help="Vision models on edge devices whose world drifts: every way of coping, side by side.",
        epilog="Start with `driftlab doctor`, then `driftlab demo`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_common)
    for group in (doctor, catalogue, run, tune, field, results):
        group.register(app)
    return app


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end. No code that catches errors takes it for one, not even for a `SystemExit`."""


def main() -> None:
    """Run the command line; a wrong request is one message and exit code 2, never a traceback."""
    _take_utf8()
    stopped_by: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """End as on Ctrl-C: whatever was started is stopped on the way out, after that was said."""
        signal.alarm(0)  # Ray's handler of SIGTERM comes before this one, and would abort the process 3 s later
        told.wait(LEAVE_S)
        if not stopped_by:
            _silence_libraries()
        stopped_by.append(number)
        raise Stopped

    with _acknowledging() as told:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as of a shell's background, which a Ctrl-C is not meant for
                signal.signal(number, stop)
        code = _run()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stopped_by else handler)
        if stopped_by:
            code = 128 + stopped_by[0]  # as shells count
    if code > 128:
        remark("Interrupted.")
    if stopped_by:
        _leave(code)  # nothing that is left of a library may change the exit code
    _end(code)


def _take_utf8() -> None:
    """Start this process again in Python's UTF-8 mode if the locale has another encoding.

    Ray and Arrow encode paths in UTF-8 in every locale, and would not find files that Python named otherwise.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def _silence_libraries() -> None:
    """Let Python's own words through alone from now on: what libraries in C print while they are ended is noise."""
    own = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    sys.stderr = own


@contextlib.contextmanager
def _acknowledging() -> Iterator[threading.Event]:
    """Say that a signal has come as soon as it has, in a thread: the main one may be deep in a library for seconds.

    The event is set once that was said. On a terminal the line is cleared first: a progress bar may stand on it, which
    is drawn again below.
    """
    told, (reading, writing) = threading.Event(), os.pipe()
    terminal = os.dup(2)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def tell() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                with contextlib.suppress(OSError):
                    os.write(terminal, (CLEAR_LINE if os.isatty(terminal) else b"") + STOPPING)
                told.set()
        os.close(reading)
        os.close(terminal)

    threading.Thread(target=tell, name="acknowledging", daemon=True).start()
    try:
        yield told
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def _run() -> int:
    """Run the command that was asked for; return its exit code."""
    try:
        build_app()(prog_name="driftlab")
    except Stopped:
        return FAILED  # the caller knows by which signal
    except RequestError as error:
        remark(f"Error: {error}")
        return WRONG_REQUEST
    except DriftlabError as error:
        remark(f"Error: {error}")
        return FAILED
    except OSError as error:  # the disk is full, or a file is not ours to write
        where = f" ('{error.filename}')" if error.filename else ""
        remark(f"Error: {error.strerror or error}{where}; make room or give access, then go on.")
        return FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    return 0


def _end(code: int) -> None:
    """End with an exit code, which stuck threads would hold up or change."""
    deadline = time.monotonic() + LEAVE_S
    stuck = [thread for thread in threading.enumerate() if thread.name.startswith(("cell", "ray, abandoned"))]
    for thread in stuck:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in stuck):
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End this process at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"driftlab {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what goes on inside.")] = False,
) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("driftlab").setLevel(logging.DEBUG if verbose else logging.WARNING)
