"""The section of a report with the papers' tables that its experiment repeats."""

from __future__ import annotations

from driftlab.platform.results.claims import cells
from driftlab.platform.results.figures.base import Grid, GridCell
from driftlab.platform.results.tables.read import Tables

NAME, TITLE = "paper_tables", "Tables of the paper"
NOTE = (
    "Each cell of a paper's table with our value. The sign is that of the difference from a reference cell. It is the "
    "same if the whole interval is on the paper's side. A cell that was not run has the run that measures it."
)


def grids_of(tables: Tables) -> list[Grid]:
    """Return a grid for every table of which this experiment measures a cell."""
    return [
        Grid(
            f"{table.source}: {table.title}",
            cells.COLUMNS[1:],
            {name: [GridCell(text) for text in texts] for name, *texts in cells.as_rows(verdicts)},
        )
        for table, verdicts in cells.compared_with(tables)
        if any(verdict.measured for verdict in verdicts)
    ]
