"""Commands in this process, whose command line is built once: to read its many options takes long."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner

from driftlab.cli.app import build_app


@functools.cache
def _application() -> typer.Typer:
    return build_app()


@functools.cache
def _built(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def run_command(words: Sequence[str], **options: Any) -> Any:
    """Run a command; the result has its output, exit code and exception."""
    with mock.patch("typer.testing._get_command", _built):  # which builds the command line for each call
        return CliRunner().invoke(_application(), words, **options)
