"""Tables of a search: trials, settings and measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from driftlab.platform.results.tables.columns import COUNT, REAL, TEXT, column, labels


@dataclass(frozen=True)
class Metric:
    """A figure that a search may improve or keep within a bound: the mean over a trial's cells."""

    meaning: str
    unit: str = ""
    at_end: bool = False  # whether it is known only at the end of a cell
    needs_truth: bool = False


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "score_live": Metric("windowed score of live predictions (runs.score_live), 0 to 1", needs_truth=True),
        "score": Metric("windowed score (runs.score), 0 to 1", needs_truth=True),
        "score_frame": Metric("score of single frames (runs.score_frame), 0 to 1", needs_truth=True),
        "uplink_kbps": Metric("device to server, per device (runs.uplink_kbps)", "kbit/s"),
        "downlink_kbps": Metric("server to device, per device (runs.downlink_kbps)", "kbit/s"),
        "kbps": Metric("both directions together, per device", "kbit/s"),
        "energy_j": Metric(
            "energy of a cell's devices (runs.energy_j); of a stopped trial extrapolated to the full length", "J"
        ),
        "latency_p50_ms": Metric("median over the frames that were processed (frames.latency_ms)", "ms"),
        "latency_p95_ms": Metric("95th percentile over the same frames", "ms"),
        "memory_bytes": Metric("largest of a cell's devices (devices.peak_memory_bytes)", "B", at_end=True),
    }
)


def _table_of(name: str, meaning: str, *columns: pa.Field) -> pa.Schema:
    own = (
        column("stage", TEXT, "search, or a run on held-out seeds: best or defaults"),
        column("trial", COUNT, "number of the trial in its stage"),
    )
    return pa.schema([*own, *columns], metadata=labels(name, meaning))


_FAILED = "the trial failed, or its cells do not measure it"

SEARCH_TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "trials": _table_of(
            "trials",
            "One row per trial of a search: its settings and results.",
            column("status", TEXT, "done, stopped (before its end, as others were better) or failed"),
            column("reason", TEXT, "why it failed", null="it did not"),
            column("settings", TEXT, "JSON: dotted path -> value"),
            column("seeds", TEXT, "seeds of its cells, with commas"),
            column("cells", COUNT, "cells that were run", "cells"),
            column("time_s", REAL, "virtual time that its session reached", "s"),
            column("streamed_s", REAL, "stream time of all its devices together, the compute budget that it used", "s"),
            *(column(name, REAL, one.meaning, one.unit, null=_FAILED) for name, one in METRICS.items()),
            column("host_seconds", REAL, "time of the host", "s"),
            column("host_overhead_seconds", REAL, "of it, before the first window and after the last", "s"),
            column("host_worker", TEXT, "process that ran it", null="not known"),
        ),
        "settings": _table_of(
            "settings",
            "One row per trial and setting.",
            column("path", TEXT, "dotted path, as --set takes it"),
            column("value", TEXT, "the value as JSON"),
            column("number", REAL, "the value, where it is a number", null="it is none"),
        ),
        "measures": _table_of(
            "measures",
            "One row per cell of a trial and metric.",
            column("workload", TEXT, "stream that the devices received"),
            column("fleet", TEXT, "devices and links by name"),
            column("seed", COUNT, "seed of the cell"),
            column("metric", TEXT, "name of the metric, a column of trials"),
            column("value", REAL, "value of the cell"),
        ),
    }
)
