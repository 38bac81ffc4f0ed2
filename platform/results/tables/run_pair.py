"""Figures of two runs side by side, such as a simulated run and one on a real device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow.compute as pc

from driftlab.platform.results.tables.read import Run

COUNTED = ("duration_s", "frames", "score_live", "score", "score_frame", "uplink_kbps", "downlink_kbps", "updates")
TIMED = ("latency_ms", "update_s")  # medians: from a frame to its prediction, from an upload to the update from it


@dataclass(frozen=True)
class FigurePair:
    """One figure of a cell in both runs."""

    cell: str
    name: str
    first: float | None
    second: float | None

    @property
    def share(self) -> float | None:
        """Return the difference as a share of the larger value; None where one run lacks it."""
        if self.first is None or self.second is None:
            return None if self.first is not self.second else 0.0
        largest = max(abs(self.first), abs(self.second))
        return abs(self.first - self.second) / largest if largest else 0.0

    def within(self, tolerance: float) -> bool:
        """Return whether the figures differ by at most a share; times always pass, as the lab computes them."""
        return self.name in TIMED or (self.share is not None and self.share <= tolerance)


HEADER = ("cell", "figure", "first", "second", "differs by")


def rows_of(figures: Sequence[FigurePair]) -> list[tuple[str, ...]]:
    """Return figures as rows of texts."""
    return [(one.cell, one.name, _text(one.first), _text(one.second), _share(one.share)) for one in figures]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def compare_figures(first: Run, second: Run) -> list[FigurePair]:
    """Match the cells of two runs by system, workload and seed; devices and links may differ."""
    left, right = figures_of(first), figures_of(second)
    return [
        FigurePair(cell, name, left[cell][name], right[cell][name])
        for cell in sorted(left.keys() & right.keys())
        for name in (*COUNTED, *TIMED)
    ]


def figures_of(run: Run) -> dict[str, dict[str, float | None]]:
    """Return the figures of each cell by system, workload and seed."""
    rows = run.table("runs").select(["cell", "system", "workload", "seed", *COUNTED]).to_pylist()
    return {f"{row['system']} {row['workload']} {row['seed']}": _figures(run, row) for row in rows}


def _figures(run: Run, row: dict[str, Any]) -> dict[str, float | None]:
    frames = run.table("frames").filter(pc.field("cell") == row["cell"])
    processed = frames.filter(pc.field("processed"))["latency_ms"]
    waits = list(update_waits(run, row["cell"]))
    times = {"latency_ms": pc.quantile(processed, 0.5)[0].as_py(), "update_s": median(waits) if waits else None}
    return {name: row[name] for name in COUNTED} | times


def update_waits(run: Run, cell: str) -> Iterator[float]:
    """Yield, for each update that arrived, the time since the newest upload that it was trained on."""
    mine = pc.field("cell") == cell
    sent = run.table("transfers").filter(mine & (pc.field("direction") == "up") & (pc.field("kind") == "samples"))
    queued: dict[tuple[str, str], list[float]] = {}
    for row in sent.select(["device", "app", "queued_s"]).to_pylist():
        queued.setdefault((row["device"], row["app"]), []).append(row["queued_s"])
    used = dict.fromkeys(queued, 0)
    for row in run.table("updates").filter(mine).select(["device", "app", "uploads", "arrive_s"]).to_pylist():
        app = (row["device"], row["app"])
        used[app] = used.get(app, 0) + row["uploads"]
        if row["arrive_s"] is not None and 0 < used[app] <= len(queued.get(app, ())):
            yield row["arrive_s"] - queued[app][used[app] - 1]
