"""Draw a picture of every figure from stored runs, and write the page that shows how to read them.

    python docs/media/figures.py RUN [RUN …]

The demo has data for most of them; short experiments for others are in `docs/media/runs`, such as `clients.yaml`.
A figure is drawn from the first run that has data for it; the others are listed at the end and keep their text and
picture. Searches are also drawn side by side, under the names of their folders.
"""

from __future__ import annotations

import html
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.platform.core.files import write_atomically
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, view_of
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.figures.searches import SEARCH_FIGURES, SIDE_BY_SIDE
from driftlab.platform.results.figures.svg import VARIABLES, panel
from driftlab.platform.results.figures.table import FIGURES
from driftlab.platform.results.relations.searches import SearchResults, is_search
from driftlab.platform.results.report.page import TEMPLATES, dashes
from driftlab.platform.results.tables.read import open_run

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "media" / "figures"
HEAD = """# Figures

Every figure that a report can show, with one sentence on how to read it. A report shows those that the run has data
for; `python docs/media/figures.py RUN` draws the pictures of this page again from stored runs.
"""
ROW, LETTER, GAP = 22, 6.0, 18  # pixels of a table
LEAST = 372  # pixels of its width
WIDTH = 125  # characters of a line of the page
MOST_ROWS, MOST_COLUMNS = 8, 5  # of a table that is a picture
NAMES = 6  # in a legend


def main(runs: Iterable[str]) -> None:
    """Draw every figure that one of these runs has, and write the page."""
    shown: dict[str, FigureContent] = {}
    given = [*map(open_run, runs)]
    searches = {run.path.name: SearchResults(run) for run in given if is_search(run)}
    sources: list[tuple[Any, Sequence[Figure]]] = [
        (searches[run.path.name], SEARCH_FIGURES) if is_search(run) else (view_of(run), FIGURES) for run in given
    ]
    for data, figures in [*sources, *([(searches, [SIDE_BY_SIDE])] if len(searches) > 1 else [])]:
        for figure in figures:
            found = None if figure.name in shown else figure.show(data)
            if found is not None and (found.panels or found.grids):
                shown[figure.name] = found
                write_atomically(FOLDER / f"{figure.name}.svg", _picture(figure, found))
    page, every = DOCS / "figures.md", (*FIGURES, *SEARCH_FIGURES, SIDE_BY_SIDE)
    before = {part.partition("\n")[0]: part for part in page.read_text(encoding="utf-8").split("\n## ")}
    parts = [_section(figure, shown.get(figure.name), before.get(figure.title)) for figure in every]
    write_atomically(page, "\n".join([HEAD, *parts]))
    absent = [figure.name for figure in every if figure.name not in shown]
    sys.stdout.write(f"No run has data for: {', '.join(absent) or 'none'}\n")


def _section(figure: Figure, shown: FigureContent | None, before: str | None) -> str:
    """Return the part of the page about one figure: the first sentence of its note, and its picture."""
    if shown is None and before is not None:
        return f"## {before.rstrip()}\n"
    note = shown.note if shown else getattr(sys.modules[figure.show.__module__], "NOTE", "")
    sentence = re.sub(r"(?<![\w`])\d[\d.]*(?: %)?", r"`\g<0>`", note.partition(". ")[0].rstrip("."))
    there = (FOLDER / f"{figure.name}.svg").is_file()
    picture = f"![{figure.title}](media/figures/{figure.name}.svg)\n" if there else "No picture: it needs a long run.\n"
    return f"## {figure.title}\n\n{textwrap.fill(f'{sentence}.', WIDTH)}\n\n{picture}"


def _picture(figure: Figure, shown: FigureContent) -> str:
    """Draw the first panel with its legend, or the first table, in light or dark colours."""
    styles = (TEMPLATES / "report.css").read_text(encoding="utf-8").partition("* { box-sizing")[0]
    if shown.panels:
        part = shown.panels[0]
        inner = panel(figure.name, figure.title, part.draw, part.height, part.width)
        width, height = (float(number) for number in inner.partition('viewBox="0 0 ')[2].partition('"')[0].split())
        legend = dict(list((part.legend or shown.legend).items())[:NAMES])
        body = f'<svg y="{18 * -(-len(legend) // 3)}" width="{width}" height="{height}"{inner[4:]}' + _legend(
            legend, width
        )
        height += 18 * -(-len(legend) // 3)
    else:
        body, width, height = _table(shown.grids[0])
    font = "text { font: 10px sans-serif; fill: var(--ink); }"
    size = f'width="{1.4 * width:.0f}" height="{1.4 * height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{styles}{font}</style>{body}</svg>\n'


def _legend(styles: Mapping[str, Style], width: float) -> str:
    rows = (
        f'<g transform="translate({8 + place % 3 * width / 3:.0f} {18 * (place // 3) + 10})">'
        f'<line x2="16" y1="-3" y2="-3" stroke="{VARIABLES[style.colour]}" stroke-width="3" '
        f'stroke-dasharray="{dashes(style)}"/><text x="21">{html.escape(name)}</text></g>'
        for place, (name, style) in enumerate(styles.items())
    )
    return "".join(rows)


def _table(grid: Grid) -> tuple[str, float, float]:
    """Draw the first rows and columns of a table; return the elements and their size."""
    rows = [[grid.title, *grid.columns], *([name, *(one.text for one in row)] for name, row in grid.rows.items())]
    rows = [row[: MOST_COLUMNS + 1] for row in rows[: MOST_ROWS + 1]]
    widths = [LETTER * max(map(len, column)) + GAP for column in zip(*rows, strict=True)]
    ends = list(itertools.accumulate(widths))
    cells = [
        f'<text x="{ends[k] - GAP if k else 4}" y="{ROW * (line + 1) - 7}" '
        f'text-anchor="{"end" if k else "start"}">{html.escape(text)}</text>'
        for line, row in enumerate(rows)
        for k, text in enumerate(row)
    ]
    return "".join(cells), max(ends[-1], LEAST), ROW * len(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
