"""Where the settings of tuned systems come from."""

from __future__ import annotations

from driftlab.platform.results.figures.base import Figure, Grid, GridCell, Shown, View
from driftlab.platform.results.relations.tuned import origins

NOTE = (
    "Settings that a search chose, on seeds that this run does not use; a path begins at the system. Streamed: the "
    "video that the trials of the search saw. All other settings are defaults, or as the experiment gives them."
)


def show(view: View) -> Shown | None:
    """List each setting with the search that chose it."""
    found = origins(view.tables.run)
    if not found:
        return None
    rows = {
        f"{system}: {path.removeprefix('systems.0.')}": [
            GridCell(f"{value:.4g}" if isinstance(value, float) else str(value)),
            GridCell(f"{one.space}, trial {one.trial}"),
            GridCell(str(one.trials)),
            GridCell(f"{one.streamed_s:.0f} s"),
        ]
        for system, one in found.items()
        for path, value in one.settings.items()
    }
    return Shown(NOTE, grids=[Grid("setting", ("value", "search", "trials", "streamed"), rows)])


FIGURE = Figure("tuned", "Where settings come from", show)
