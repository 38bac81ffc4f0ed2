"""The board: one static page about many runs, which opens offline."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError
from driftlab.platform.core.files import write_atomically
from driftlab.platform.results.board.entries import BoardRow, entries_of, is_run_folder

TEMPLATES = Path(__file__).parent / "templates"
FILE = "board.html"


def write_board(folder: str | Path, out: str | Path | None = None) -> tuple[Path, list[BoardRow]]:
    """Write the page about all runs below a folder; return it with its rows."""
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise RequestError(f"There is no folder '{folder}': give the one that holds the folders of runs.")
    if is_run_folder(root):
        raise RequestError(f"'{folder}' is the folder of one run: give the one that holds it.")
    page = root / FILE if out is None else Path(out).expanduser().absolute()
    if page.is_dir():
        raise RequestError(f"'{out}' is a folder: give the name of a file, such as {FILE}.")
    entries = entries_of(root, page)
    write_atomically(page, render("board.html.j2", TEMPLATES, folder=str(folder), document=document_of(entries)))
    return page, entries


def document_of(entries: list[BoardRow]) -> str:
    """Write the rows as JSON that may stand inside a script."""
    rows = [asdict(entry) for entry in entries]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(template: str, source: Path, **values: Any) -> str:
    """Fill a template of a folder; it may include the charts and the style of this one."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([source, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
