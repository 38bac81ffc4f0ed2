"""Tables of the papers cell by cell, for the experiments that repeat them."""

from __future__ import annotations

from driftlab.platform.results.claims import cells
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, View

NOTE = (
    "Each cell of a paper's table beside ours. The sign is that of the difference from a reference cell. It "
    "is the same if the whole interval is on the paper's side. A cell that was not run has the run that measures it."
)


def show(view: View) -> FigureContent | None:
    """List the cells of every table that this experiment repeats."""
    name = view.tables.run.spec.get("name")
    own = [table for table in cells.every_table().values() if any(one.experiment == name for one in table.cells)]
    found = [(table, cells.compare(table, view.tables)) for table in own]
    grids = [
        Grid(
            f"{table.source}: {table.title}",
            cells.COLUMNS[1:],
            {name: [GridCell(text) for text in texts] for name, *texts in cells.as_rows(verdicts)},
        )
        for table, verdicts in found
        if any(verdict.measured for verdict in verdicts)
    ]
    return FigureContent(NOTE, grids=grids) if grids else None


FIGURE = Figure("paper_tables", "Tables of the paper", show)
