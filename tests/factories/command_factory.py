"""Commands in this process, whose command line is built once: to read its many options takes long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner

from driftlab.cli.app import build_app


@cache
def command_line() -> typer.core.TyperGroup:
    """Return the command line of driftlab."""
    return typer.main.get_command(build_app())


def run_command(words: Sequence[str], **options: Any) -> Any:
    """Run a command; the result has its output, exit code and exception."""
    with mock.patch("typer.testing._get_command", lambda _: command_line()):  # which builds it for each call
        return CliRunner().invoke(typer.Typer(), words, **options)
