"""What the commands print: one JSON document, or columns that line up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def say(text: str = "") -> None:
    """Print a line of the answer."""
    typer.echo(text)


def remark(text: str) -> None:
    """Print a line that is not part of the answer."""
    typer.echo(text, err=True)


def print_json(document: Any) -> None:
    """Print one JSON document and nothing else."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def print_columns(rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
    """Print rows as columns; the last one is as long as it likes."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo((indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip())
