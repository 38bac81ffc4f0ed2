"""Output of the commands: one JSON document, aligned columns, or a table in the width of the terminal."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import typer

WIDTH = 100  # without a terminal
MIN_NAME = 8  # characters of a truncated name
UNITS = (
    ("days", 86_400, 172_800),
    ("hours", 3600, 5400),
    ("minutes", 60, 90),
)  # unit, its seconds, and the shortest duration that is given in it


def say(text: str = "") -> None:
    """Print a line of the result to stdout."""
    typer.echo(text)


def print_note(text: str) -> None:
    """Print a line that is not part of the result to stderr."""
    typer.echo(text, err=True)


def print_json(document: Any) -> None:
    """Print a document as JSON."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def print_columns(rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
    """Print aligned columns; the last is not truncated."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo((indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip())


def print_ranked(head: Sequence[Sequence[str]], rows: Iterable[tuple[Sequence[str], str]]) -> None:
    """Print right-aligned columns after the first; a row is bold, dim or plain, and dim rows stand apart.

    If the table exceeds the width of a page, the first column is truncated.
    """
    listed = [*((line, "") for line in head), *rows]
    widths = [max(len(cells[place]) for cells, _ in listed) for place in range(len(head[0]))]
    widths[0] = max(MIN_NAME, min(widths[0], WIDTH - sum(width + 2 for width in widths[1:])))
    before = ""
    for cells, style in listed:
        name = cells[0] if len(cells[0]) <= widths[0] else cells[0][: widths[0] - 1] + "…"
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        if style == "dim" != before:
            typer.echo()
        line = "  ".join([name.ljust(widths[0]), *others]).rstrip()
        typer.echo(typer.style(line, **({style: True} if style else {})))
        before = style


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Iterable[str] = ()) -> None:
    """Print a table wrapped to the width of the terminal; columns in `whole` are wrapped last."""
    from rich.box import MARKDOWN
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, unwrapped = Table(box=MARKDOWN, show_edge=False, pad_edge=False), set(whole)
    for name in head:
        table.add_column(name, no_wrap=name in unwrapped, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    Console(file=(written := io.StringIO()), width=width, color_system=None).print(table)
    for line in written.getvalue().splitlines():
        typer.echo(line.rstrip())


def format_duration(seconds: float) -> str:
    """Format a duration in days, hours, minutes or seconds."""
    for unit, unit_s, least_s in UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.2g} {unit}"
    return count(max(1, round(seconds)), "second")


def count(number: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
