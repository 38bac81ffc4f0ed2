"""Settings of tuned systems and the searches that selected them."""

from __future__ import annotations

from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, View
from driftlab.platform.results.relations.tuned import origins

NOTE = (
    "Values selected by `driftlab tune` on other seeds than this run's; paths are relative to the system. Streamed: "
    "total video length of the search's trials. All other settings are defaults or those of the experiment."
)


def show(view: View) -> FigureContent | None:
    """List each setting with the search that selected it."""
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
    return FigureContent(NOTE, grids=[Grid("setting", ("value", "search", "trials", "streamed"), rows)])


FIGURE = Figure("tuned", "Tuned settings", show)
