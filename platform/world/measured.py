"""Measured networks from a CSV or Parquet file, and functions of a set of networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driftlab.errors import DataError, RequestError, first_line, quoted, unknown_name
from driftlab.platform.core.documents import check_file
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
COLUMNS = ("app", "variant", *UNITS)
MAX_QUANTITY = 1e18  # bytes, joules, multiply-accumulates
LIMITS: Mapping[str, tuple[float, float]] = {"accuracy": (0, 1), "latency_s": (1e-12, 1e9)}  # others: 0 to MAX_QUANTITY
MAX_BYTES, MAX_ROWS = 2**26, 100_000  # of a file
FAULTS_SHOWN = 5
VALUES_SHOWN = 20
Row = dict[str, Any]


def read(
    path: Path, rename: Mapping[str, str] | None = None, only: Mapping[str, Any] | None = None
) -> dict[str, tuple[Variant, ...]]:
    """Read each application's networks, from the smallest on; `only` keeps rows with these values, as of one device."""
    columns, rows = _table(path)
    names, wanted = {column: (rename or {}).get(column, column) for column in columns}, only or {}
    misnamed = list(_misnamed(rename or {}, columns))
    _refuse(path, [*misnamed, *_nowhere(wanted, columns, rows), *([] if misnamed else _ill_shaped(columns, names))])
    rows = [row for row in rows if all(_is(row[column], value) for column, value in wanted.items())]
    if not rows:
        raise DataError(f"{path} has no rows{f' with {dict(wanted)}' if wanted else ''}.")
    faults: list[str] = []
    found: dict[str, list[Variant]] = {}
    for number, row in enumerate(rows, 1):
        renamed = {names[column]: value for column, value in row.items()}
        app = str(renamed.get("app", path.stem))
        found.setdefault(app, []).append(_variant(renamed, number, len(found.get(app, [])), faults))
    faults.extend([*_half_sized(rows, names), *_twice(found)])
    if faults:
        more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise DataError(f"{path}: {'; '.join(faults[:FAULTS_SHOWN])}{more}.")
    return {app: tuple(sorted(ones, key=lambda one: (one.memory_bytes, one.latency_s))) for app, ones in found.items()}


def _table(path: Path) -> tuple[list[str], list[Row]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix not in (".csv", ".parquet"):
        raise RequestError(f"{path} is no profile of networks: it must end in .csv or .parquet.")
    try:
        check_file(path, MAX_BYTES)
        table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {first_line(error)}.") from error
    if len(table) > MAX_ROWS:
        raise DataError(f"{path} has {len(table):,} rows, allowed are {MAX_ROWS:,}.")
    return list(table.column_names), table.to_pylist()


def _refuse(path: Path, faults: list[str]) -> None:
    if faults:
        raise DataError(f"{path}: {' '.join(faults)}")


def _misnamed(rename: Mapping[str, str], columns: list[str]) -> Iterator[str]:
    """Name the columns to rename that are missing, and the new names that are unknown."""
    for column, name in rename.items():
        if column not in columns:
            yield f"rename.{column}: {unknown_name('column of the file', column, columns)}"
        if name not in COLUMNS:
            yield f"rename.{column}: {unknown_name('column', name, COLUMNS)}"


def _nowhere(only: Mapping[str, Any], columns: list[str], rows: list[Row]) -> Iterator[str]:
    """Name the columns of `only` that are missing, and the values that no row has."""
    for column, value in only.items():
        if column not in columns:
            yield f"only.{column}: {unknown_name('column of the file', column, columns)}"
        elif rows and not any(_is(row[column], value) for row in rows):
            known = {str(row[column]) for row in rows}
            many = f"None of its {len(known)} values is {quoted(value)}."
            yield f"only.{column}: {many if len(known) > VALUES_SHOWN else unknown_name('value', str(value), known)}"


def _is(there: Any, value: Any) -> bool:
    """Compare numbers as numbers and all other values as text."""
    return bool(there == value) or str(there) == str(value)


def _ill_shaped(columns: list[str], names: Mapping[str, str]) -> list[str]:
    """Name quantities that are given twice, and a missing latency or accuracy."""
    meant = [UNITS.get(name, (name, 1))[0] for name in (names[column] for column in columns) if name in COLUMNS]
    faults = [f"'{name}' is there {meant.count(name)} times" for name in sorted(set(meant)) if meant.count(name) > 1]
    faults += [f"no column of '{name}'" for name in ("accuracy", "latency_s") if name not in meant]
    return [f"{'; '.join(faults)}; it has {', '.join(columns)}; known are {', '.join(COLUMNS)}."] if faults else []


def _variant(row: Row, number: int, place: int, faults: list[str]) -> Variant:
    values: dict[str, float | None] = {}
    for column, value in row.items():
        if column in UNITS:
            name, factor = UNITS[column]
            values[name] = _number(value, factor, LIMITS.get(name, (0, MAX_QUANTITY)))
            if values[name] is None and not (value is None and name != "latency_s"):
                faults.append(f"row {number}: {column} is {quoted(value)}")
    macs, called = values.get("macs"), row.get("variant")
    return Variant(
        name=str(place if called in (None, "") else called),
        accuracy=values.get("accuracy"),
        memory_bytes=round(values.get("memory_bytes") or 0),
        latency_s=values.get("latency_s") or 0.0,
        energy_j=values.get("energy_j"),
        macs=None if macs is None else round(macs),
    )


def _number(value: Any, factor: float, limits: tuple[float, float]) -> float | None:
    """Return a finite number within its limits in the base unit; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    fitted = float(value) * factor
    return fitted if limits[0] <= fitted <= limits[1] else None


def _half_sized(rows: list[Row], names: Mapping[str, str]) -> Iterator[str]:
    """Name the rows without a size where others have one: a network of 0 bytes would always fit."""
    for column in (column for column, name in names.items() if UNITS.get(name, ("", 1))[0] == "memory_bytes"):
        empty = [number for number, row in enumerate(rows, 1) if row[column] is None]
        if len(empty) < len(rows):
            yield from (f"row {number}: {column} is empty, in others it is not" for number in empty)


def _twice(found: Mapping[str, list[Variant]]) -> Iterator[str]:
    for app, ones in found.items():
        names = [one.name for one in ones]
        yield from (
            f"{app} has {name} {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1
        )


def knee(variants: Sequence[Variant]) -> int:
    """Find the bend of accuracy over log size: the point farthest above the line from smallest to largest."""
    size = np.log([max(variant.memory_bytes, 1) for variant in variants])
    if np.ptp(size) == 0:  # of unknown or equal size: order by latency
        size = np.log([variant.latency_s for variant in variants])
    accuracy = np.array([variant.accuracy or 0.0 for variant in variants])
    if np.ptp(size) == 0 or np.ptp(accuracy) == 0:
        return int(size.argmin())
    least, most = int(size.argmin()), int(size.argmax())
    along = (size - size[least]) / (size[most] - size[least])
    above = accuracy - (accuracy[least] + along * (accuracy[most] - accuracy[least]))
    return int(above.argmax())


def paged_bytes(variants: Sequence[Variant], before: int | None, after: int | None, *, nested: bool) -> tuple[int, int]:
    """Count the bytes paged in and out by a switch: of nested networks the difference, of those with parts the parts in
    which they differ, of others all.
    """
    held, wanted = (0 if which is None else variants[which].memory_bytes for which in (before, after))
    if before == after:
        return 0, 0
    there, needed = (dict(() if which is None else variants[which].parts) for which in (before, after))
    if there or needed:
        loaded = sum(size for name, size in needed.items() if name not in there)
        return loaded, sum(size for name, size in there.items() if name not in needed)
    return (max(0, wanted - held), max(0, held - wanted)) if nested else (wanted, held)
