"""The `driftlab` command: common options, groups of commands, signals and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any

import typer
import typer.core

from driftlab import __version__
from driftlab.cli import apps, boxes, catalogue, check, demo, devices, doctor, field, new, results, run, tune
from driftlab.cli.output import print_note, say
from driftlab.errors import DriftlabError, RequestError, shortened
from driftlab.renamed import RENAMED, name_hint

FAILED = 1  # the run failed, or the comparison differs
WRONG_REQUEST = 2
JOIN_TIMEOUT_S = 1.0  # for threads to end after a run
MISNAMED = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
CLEAR_LINE = b"\r\x1b[2K"
STOPPING = b"Stopping: ending all processes; finished results are kept.\n"


def build_app() -> typer.Typer:
    """Return the application with all commands; a command imports its modules when it runs."""
    app = typer.Typer(
        name="driftlab",
        cls=_Commands,
        help="Simulate vision models on edge devices under distribution shift, varying load and shared processors.",
        epilog="Start with `driftlab doctor`, then `driftlab demo`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_common)
    for group in (doctor, catalogue, boxes, new, check, run, demo, tune, field, devices, apps, results):
        group.register(app)
    for command in app.registered_commands:
        command.cls = _Command
    return app


class _Commands(typer.core.TyperGroup):
    """The commands, with a hint for a name that other programs have."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] == ["compare"]:
            raise RequestError(
                "There is no command 'compare'. Two systems of a run: its report, or "
                '`driftlab.open_run(DIR).compare("a", "b")` in Python. Two runs: `driftlab diff DIR DIR`.'
            )
        return super().resolve_command(ctx, args)


class _Command(typer.core.TyperCommand):
    """A command that names the new option for one with another name during development."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            given = getattr(error, "option_name", "")  # of an unknown option
            known = [option for parameter in self.params for option in parameter.opts]
            if set(RENAMED.get(given, ())) & {*known}:
                raise RequestError(f"Unknown option '{given}'.{name_hint(given, known)}") from None
            raise


class Stopped(KeyboardInterrupt):
    """A signal to end this process; no handler of Exception or SystemExit catches it."""


def main() -> None:
    """Run the command line; an invalid request prints one message and has exit code 2."""
    _restart_in_utf8()
    stopped_by: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise Stopped after the message, so that all `finally` blocks end their processes."""
        signal.alarm(0)  # Ray's handler of SIGTERM runs before this one and would abort the process 3 s later
        printed.wait(JOIN_TIMEOUT_S)
        if not stopped_by:
            _silence_libraries()
        stopped_by.append(number)
        raise Stopped

    with _acknowledging() as printed:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C
                signal.signal(number, stop)
        code = _run()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stopped_by else handler)
        if stopped_by:
            code = 128 + stopped_by[0]  # the convention of shells
    if code > 128:
        print_note("Interrupted.")
    if stopped_by:
        _exit_now(code)  # without the exit handlers of libraries, which could change the code
    _end(code)


def _check_encoding(words: Sequence[str]) -> None:
    """Refuse an argument that is not UTF-8: no file of a run could name it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise RequestError(f"The argument {shortened(ascii(word))} is not UTF-8. Use another name.") from None


def _restart_in_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale has another encoding.

    Ray and Arrow encode paths in UTF-8 in every locale, so they would not find files with names in another encoding.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def _silence_libraries() -> None:
    """Discard further stderr output of C libraries, which print errors while they end; keep Python's."""
    stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    sys.stderr = stderr


@contextlib.contextmanager
def _acknowledging() -> Iterator[threading.Event]:
    """Print a message as soon as a signal arrives; a library may block the main thread for seconds.

    The event is set once the message is printed. On a terminal the current line is cleared first, which may hold a
    progress bar; the bar is drawn again below.
    """
    printed, (reading, writing) = threading.Event(), os.pipe()
    terminal = os.dup(2)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def print_message() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                with contextlib.suppress(OSError):
                    os.write(terminal, (CLEAR_LINE if os.isatty(terminal) else b"") + STOPPING)
                printed.set()
        os.close(reading)
        os.close(terminal)

    threading.Thread(target=print_message, name="acknowledging", daemon=True).start()
    try:
        yield printed
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def _run() -> int:
    """Run the command and return its exit code; print errors of driftlab as one message."""
    try:
        _check_encoding(sys.argv[1:])
        build_app()(prog_name="driftlab")
    except Stopped:
        return FAILED  # the caller replaces it by the code of the signal
    except RequestError as error:
        print_note(f"Error: {error}")
        return WRONG_REQUEST
    except DriftlabError as error:
        print_note(f"Error: {error}")
        return FAILED
    except OSError as error:  # a full disk, or missing permissions
        where = f" ('{error.filename}')" if error.filename else ""
        fix = "use another name" if isinstance(error, MISNAMED) else "free space or change permissions, then resume"
        print_note(f"Error: {error.strerror or error}{where}; {fix}.")
        return FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    return 0


def _end(code: int) -> None:
    """Exit with a code; do not wait for threads that are stuck in a call of Ray or a cell."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    stuck = [thread for thread in threading.enumerate() if thread.name.startswith(("cell", "ray, abandoned"))]
    for thread in stuck:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in stuck):
        _exit_now(code)
    atexit.register(gc.freeze)  # Python's last search for garbage would take .3 s after an import of torch
    sys.exit(code)


def _exit_now(code: int) -> None:
    """Exit without running exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _print_version(requested: bool) -> None:
    if requested:
        say(f"driftlab {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print log messages of level DEBUG.")] = False,
) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("driftlab").setLevel(logging.DEBUG if verbose else logging.WARNING)
