"""Open a run to look at it: what `driftlab.open_run` gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.platform.results.tables import read
from driftlab.platform.results.tables.read import Run, Tables

if TYPE_CHECKING:
    import pandas as pd

    from driftlab.platform.results.relations.pairing import Comparison


@dataclass(frozen=True)
class StudiedRun(Run):
    """A run folder that answers questions about its tables."""

    def compare(
        self, ours: str, theirs: str, column: str = "score", *, by: str = "workload", less_is_better: bool | None = None
    ) -> Comparison:
        """Compare two systems over the seeds that both ran: better, worse or cannot tell (see `pairing.compare`)."""
        from driftlab.platform.results.relations.pairing import compare

        return compare(Tables(self), ours, theirs, column, by=by, less_is_better=less_is_better)

    def classes(self) -> pd.DataFrame:
        """List how every class fared under every system; since schema 4.2, of detection none."""
        return self.frame("class_scores")


def open_run(path: str | Path) -> StudiedRun:
    """Open a run folder; what is not one, or is damaged, is refused with the file and the cure."""
    run = read.open_run(path)
    return StudiedRun(run.path, run.spec, run.info)
