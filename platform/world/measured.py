"""Networks that somebody has measured, from a CSV or Parquet file: one row for each, in these columns.

| column | meaning |
|---|---|
| `app` | the application that the network serves; without it the file is of one application, named by the file |
| `variant` | the network's name, different for each of an application; without it they are numbered |
| `accuracy` or `accuracy_percent` | on held-out data; empty: not measured |
| `latency_s` or `latency_ms` | for one frame, alone on the whole machine |
| `memory_bytes` or `memory_mb` | while it runs; without it memory limits nothing |
| `energy_j` or `energy_mj` | for one frame; may be missing |
| `macs` | multiply-accumulates for one frame; may be missing |

Other columns are passed over. A file that calls them otherwise is read with their names: `rename={"acc": "accuracy"}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driftlab.errors import DataError, RequestError
from driftlab.platform.core.records import Variant

UNITS: Mapping[str, tuple[str, float]] = {
    "accuracy": ("accuracy", 1),
    "accuracy_percent": ("accuracy", 0.01),
    "latency_s": ("latency_s", 1),
    "latency_ms": ("latency_s", 1e-3),
    "memory_bytes": ("memory_bytes", 1),
    "memory_mb": ("memory_bytes", 1e6),
    "energy_j": ("energy_j", 1),
    "energy_mj": ("energy_j", 1e-3),
    "macs": ("macs", 1),
}
LIMITS: Mapping[str, tuple[float, float]] = {"accuracy": (0, 1), "latency_s": (1e-12, math.inf)}  # others: 0 and more
FAULTS_SHOWN = 5
Row = dict[str, Any]


def read(
    path: Path, rename: Mapping[str, str] | None = None, only: Mapping[str, str] | None = None
) -> dict[str, tuple[Variant, ...]]:
    """Read each application's networks, from the smallest on; `only` keeps rows with these values, as of one device."""
    rows = [row for row in _rows(path) if all(str(row.get(key)) == value for key, value in (only or {}).items())]
    if not rows:
        raise DataError(f"{path} has no rows{f' with {dict(only)}' if only else ''}.")
    names = {column: (rename or {}).get(column, column) for column in rows[0]}
    _check_columns(path, list(names.values()))
    faults: list[str] = []
    found: dict[str, list[Variant]] = {}
    for number, row in enumerate(rows, 1):
        renamed = {names[column]: value for column, value in row.items()}
        app = str(renamed.get("app", path.stem))
        found.setdefault(app, []).append(_variant(renamed, number, len(found.get(app, [])), faults))
    faults.extend(_twice(found))
    if faults:
        more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise DataError(f"{path}: {'; '.join(faults[:FAULTS_SHOWN])}{more}.")
    return {app: tuple(sorted(ones, key=lambda one: (one.memory_bytes, one.latency_s))) for app, ones in found.items()}


def _rows(path: Path) -> list[Row]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix not in (".csv", ".parquet"):
        raise RequestError(f"{path} is no profile of networks: it must end in .csv or .parquet.")
    try:
        table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    rows: list[Row] = table.to_pylist()
    return rows


def _check_columns(path: Path, columns: list[str]) -> None:
    """Refuse what says the same twice, or nothing of the latency or the accuracy."""
    meant = [UNITS[column][0] for column in columns if column in UNITS]
    faults = [f"'{name}' is there {meant.count(name)} times" for name in sorted(set(meant)) if meant.count(name) > 1]
    faults += [f"no column of '{name}'" for name in ("accuracy", "latency_s") if name not in meant]
    if faults:
        known = ", ".join(["app", "variant", *UNITS])
        raise DataError(f"{path}: {'; '.join(faults)}; it has {', '.join(columns)}; known are {known}.")


def _variant(row: Row, number: int, place: int, faults: list[str]) -> Variant:
    values: dict[str, float | None] = {}
    for column, value in row.items():
        if column in UNITS:
            name, factor = UNITS[column]
            values[name] = _number(value, factor, LIMITS.get(name, (0, math.inf)))
            if values[name] is None and not (value is None and name != "latency_s"):
                faults.append(f"row {number}: {column} is {value!r}")
    macs = values.get("macs")
    return Variant(
        name=str(row.get("variant") or place),
        accuracy=values.get("accuracy"),
        memory_bytes=round(values.get("memory_bytes") or 0),
        latency_s=values.get("latency_s") or 0.0,
        energy_j=values.get("energy_j"),
        macs=None if macs is None else round(macs),
    )


def _number(value: Any, factor: float, limits: tuple[float, float]) -> float | None:
    """Give a finite number within its limits, in its own unit; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    fitted = float(value) * factor
    return fitted if limits[0] <= fitted <= limits[1] else None


def _twice(found: Mapping[str, list[Variant]]) -> Iterator[str]:
    for app, ones in found.items():
        names = [one.name for one in ones]
        yield from (
            f"{app} has {name} {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1
        )
