"""Compute the metrics of a trial's cells, as defined by the tables of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from driftlab.platform.core.records import Rows
from driftlab.platform.results.tables.search import METRICS
from driftlab.platform.sim.rows import run_row
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.setting import Cell

Measures = Mapping[str, float]


def measures_of(rows: Rows) -> dict[str, float]:
    """Read the metrics of a finished cell from its rows, without unmeasured ones."""
    ((run,),) = (list(_lines(rows["runs"])),)
    peaks = [line["peak_memory_bytes"] for line in _lines(rows.get("devices", ()))]
    memory = {"memory_bytes": max(peaks)} if peaks and None not in peaks else {}
    return _known({**_from_run(run), **_latencies(rows), **memory})


def measures_so_far(loop: Runner, time_s: float) -> dict[str, float]:
    """Measure a running cell as if its session ended at `time_s`; the last window may be incomplete.

    Energy is a sum over the session, so it is extrapolated to the full session: else stopped trials would seem cheap.
    """
    accounts = [app.account for app in loop.apps.values()]
    run = run_row(replace(loop.cell, duration_s=time_s), loop.setup, accounts, ())
    found = _from_run(run)
    seen_s = _seen_s(loop.cell, loop.ledger.rows)
    found["energy_j"] = found["energy_j"] * loop.cell.duration_s / seen_s if seen_s else None
    return _known({**found, **_latencies(loop.ledger.rows)})


def mean(cells: Sequence[Measures]) -> dict[str, float]:
    """Average each metric over cells, without metrics that a cell lacks."""
    shared = [name for name in METRICS if cells and all(name in cell for cell in cells)]
    return {name: float(np.mean([cell[name] for cell in cells])) for name in shared}


def _from_run(run: Mapping[str, Any]) -> dict[str, Any]:
    names = ("score_live", "score", "score_frame", "uplink_kbps", "downlink_kbps", "energy_j")
    found = {name: run.get(name) for name in names}
    if found["uplink_kbps"] is not None:
        found["kbps"] = run["uplink_kbps"] + run["downlink_kbps"]
    return found


def _seen_s(cell: Cell, rows: Rows) -> float:
    """Return how many seconds of the session the frame rows cover."""
    newest_s = [float(np.max(chunk["time_s"])) for chunk in rows.get("frames", ()) if np.size(chunk["time_s"])]
    return max(newest_s) + 1 / cell.devices[0].apps[0].stream.fps if newest_s else 0.0


def _latencies(rows: Rows) -> dict[str, float]:
    chunks = [np.atleast_1d(np.asarray(chunk["latency_ms"], dtype=np.float64)) for chunk in rows.get("frames", ())]
    shown = np.concatenate(chunks) if chunks else np.empty(0)
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return {}
    median, late = np.percentile(shown, (50, 95))
    return {"latency_p50_ms": float(median), "latency_p95_ms": float(late)}


def _lines(chunks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Go through rows that were written one by one."""
    for chunk in chunks:
        yield {name: values[0] for name, values in chunk.items()}


def _known(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items() if value is not None and np.isfinite(value)}
