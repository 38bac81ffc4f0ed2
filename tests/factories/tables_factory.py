"""Tables that a test writes by hand, with every column and without files."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
from spec_factory import stored

from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.schema import TABLES


class Made(Tables):
    """The tables of a made-up run."""

    def __init__(self, spec: dict[str, Any] | None = None, **tables: list[dict[str, Any]]) -> None:
        ran = [row["system"] for rows in tables.values() for row in rows if "system" in row]
        super().__init__(SimpleNamespace(spec=stored(spec or {}, ran), info={}))
        for name in TABLES:
            self._frames[name] = pd.DataFrame(tables.get(name, []), columns=TABLES[name].names)

    def change(self, table: str, **columns: Callable[[dict[str, Any]], Any]) -> None:
        """Set columns by a function of a row."""
        frame = self._frames[table]
        made = {name: [each(row) for row in frame.to_dict("records")] for name, each in columns.items()}
        self._frames[table] = frame.assign(**made)
        self._results.clear()

    def drop(self, table: str, which: Callable[[dict[str, Any]], Any]) -> None:
        """Forget the rows of which a function holds."""
        frame = self._frames[table]
        self._frames[table] = frame[[not which(row) for row in frame.to_dict("records")]]
        self._results.clear()


def run_row(system: str, seed: int = 0, workload: str = "w", fleet: str = "one", **more: Any) -> dict[str, Any]:
    """Make the row of a cell that ended well, on one device."""
    cell = f"{system}/{workload}/{fleet}/seed-{seed}"
    place = {"cell": cell, "system": system, "workload": workload, "fleet": fleet}
    return {**place, "devices": 1, "seed": seed, "status": "done", **more}


def share_row(app: str = "a", time_s: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return an application's half of a device for 1 s: 100 ms per prediction, 1 J for all of them."""
    usual = {"device": "d", "app": app, "time_s": time_s, "window_s": 1.0, "inference_share": 0.5, "priority": 1.0}
    usual |= {"variant": 0, "accuracy": 0.5, "latency_ms": 100.0, "fps": 30.0, "energy_j": 1.0}
    return {**usual, "paged_in_bytes": 0, "paged_out_bytes": 0, "paging_s": 0.0, "paging_j": 0.0, **more}


# The row of an application without a share, in place of its shares.
WAITS: dict[str, Any] = {
    "inference_share": 0.0,
    "variant": None,
    "accuracy": None,
    "latency_ms": None,
    "energy_j": None,
}


def numbers_in(text: str) -> list[float]:
    """List the numbers of a sentence, so that a test holds them and not its words."""
    return [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]
