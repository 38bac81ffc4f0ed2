"""The `driftlab` command: its common options, its groups of commands, and what its exit codes mean."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from driftlab import __version__
from driftlab.cli import catalogue, doctor, results, run
from driftlab.cli.output import remark, say
from driftlab.errors import DriftlabError, RequestError

FAILED = 1  # the run failed, or the comparison differs
WRONG_REQUEST = 2
INTERRUPTED = 128 + signal.SIGINT  # as shells count
TERMINATED = 128 + signal.SIGTERM


def build_app() -> typer.Typer:
    """Put the commands together; what they need is imported when they run."""
    app = typer.Typer(
        name="driftlab",
        help="Vision models on edge devices whose world drifts: every way of coping, side by side.",
        epilog="Start with `driftlab doctor`, then `driftlab demo`.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_common)
    for group in (doctor, catalogue, run, results):
        group.register(app)
    return app


def main() -> None:
    """Run the command line; a wrong request is one message and exit code 2, never a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        build_app()(prog_name="driftlab")
    except RequestError as error:
        remark(f"Error: {error}")
        sys.exit(WRONG_REQUEST)
    except DriftlabError as error:
        remark(f"Error: {error}")
        sys.exit(FAILED)
    except OSError as error:  # the disk is full, or a file is not ours to write
        where = f" ('{error.filename}')" if error.filename else ""
        remark(f"Error: {error.strerror or error}{where}; make room or give access, then go on.")
        sys.exit(FAILED)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            remark("Interrupted.")
        raise


def _terminate(number: int, frame: FrameType | None) -> None:
    """End as on Ctrl-C: whatever was started is stopped on the way out."""
    raise SystemExit(TERMINATED)


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
