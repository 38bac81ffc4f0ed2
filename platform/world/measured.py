"""Measured networks from a CSV or Parquet file, and functions of a set of variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    "weight_bytes": ("weight_bytes", 1),
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
    """Return each application's networks, smallest first; `only` selects rows, as of one device."""
    columns, rows = _table(path)
    names, selected = {column: (rename or {}).get(column, column) for column in columns}, only or {}
    rename_faults = list(_rename_faults(rename or {}, columns))
    shape_faults = [] if rename_faults else _shape_faults(columns, names)
    _refuse(path, [*rename_faults, *_selection_faults(selected, columns, rows), *shape_faults])
    rows = [row for row in rows if all(_equals(row[column], value) for column, value in selected.items())]
    if not rows:
        raise DataError(f"{path} has no rows{f' with {dict(selected)}' if selected else ''}.")
    faults: list[str] = []
    by_app: dict[str, list[Variant]] = {}
    for number, row in enumerate(rows, 1):
        renamed = {names[column]: value for column, value in row.items()}
        app = str(renamed.get("app", path.stem))
        by_app.setdefault(app, []).append(_variant(renamed, number, len(by_app.get(app, [])), faults))
    faults.extend([*_missing_sizes(rows, names), *_duplicates(by_app)])
    if faults:
        more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise DataError(f"{path}: {'; '.join(faults[:FAULTS_SHOWN])}{more}.")
    return {app: tuple(sorted(ones, key=lambda one: (one.memory_bytes, one.latency_s))) for app, ones in by_app.items()}


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


def _rename_faults(rename: Mapping[str, str], columns: list[str]) -> Iterator[str]:
    """Yield a fault for each missing column to rename, and for each unknown new name."""
    for column, name in rename.items():
        if column not in columns:
            yield f"rename.{column}: {unknown_name('column of the file', column, columns)}"
        if name not in COLUMNS:
            yield f"rename.{column}: {unknown_name('column', name, COLUMNS)}"


def _selection_faults(only: Mapping[str, Any], columns: list[str], rows: list[Row]) -> Iterator[str]:
    """Yield a fault for each missing column of `only`, and for each value that no row has."""
    for column, value in only.items():
        if column not in columns:
            yield f"only.{column}: {unknown_name('column of the file', column, columns)}"
        elif rows and not any(_equals(row[column], value) for row in rows):
            values = {str(row[column]) for row in rows}
            if len(values) > VALUES_SHOWN:
                yield f"only.{column}: None of its {len(values)} values is {quoted(value)}."
            else:
                yield f"only.{column}: {unknown_name('value', str(value), values)}"


def _equals(cell: Any, value: Any) -> bool:
    """Compare numbers as numbers, and all other values as text."""
    return bool(cell == value) or str(cell) == str(value)


def _shape_faults(columns: list[str], names: Mapping[str, str]) -> list[str]:
    """Return the faults of duplicate quantities, and of a missing latency or accuracy."""
    quantities = [UNITS.get(name, (name, 1))[0] for name in (names[column] for column in columns) if name in COLUMNS]
    repeated = [name for name in sorted(set(quantities)) if quantities.count(name) > 1]
    faults = [f"'{name}' is there {quantities.count(name)} times" for name in repeated]
    faults += [f"no column of '{name}'" for name in ("accuracy", "latency_s") if name not in quantities]
    return [f"{'; '.join(faults)}; it has {', '.join(columns)}; known are {', '.join(COLUMNS)}."] if faults else []


def _variant(row: Row, number: int, place: int, faults: list[str]) -> Variant:
    values: dict[str, float | None] = {}
    for column, value in row.items():
        if column in UNITS:
            name, factor = UNITS[column]
            values[name] = _number(value, factor, LIMITS.get(name, (0, MAX_QUANTITY)))
            if values[name] is None and not (value is None and name != "latency_s"):
                faults.append(f"row {number}: {column} is {quoted(value)}")
    macs, stored, label = values.get("macs"), values.get("weight_bytes"), row.get("variant")
    return Variant(
        name=str(place if label in (None, "") else label),
        accuracy=values.get("accuracy"),
        memory_bytes=round(values.get("memory_bytes") or 0),
        latency_s=values.get("latency_s") or 0.0,
        energy_j=values.get("energy_j"),
        macs=None if macs is None else round(macs),
        weight_bytes=None if stored is None else round(stored),
    )


def _number(value: Any, factor: float, limits: tuple[float, float]) -> float | None:
    """Return a finite number within its limits, in the base unit; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    converted = float(value) * factor
    return converted if limits[0] <= converted <= limits[1] else None


def _missing_sizes(rows: list[Row], names: Mapping[str, str]) -> Iterator[str]:
    """Yield a fault for each row without a size if others have one: a network of 0 bytes would always fit."""
    for column in (column for column, name in names.items() if UNITS.get(name, ("", 1))[0] == "memory_bytes"):
        empty = [number for number, row in enumerate(rows, 1) if row[column] is None]
        if len(empty) < len(rows):
            yield from (f"row {number}: {column} is empty, in others it is not" for number in empty)


def _duplicates(by_app: Mapping[str, list[Variant]]) -> Iterator[str]:
    for app, ones in by_app.items():
        names = [one.name for one in ones]
        yield from (
            f"{app} has {name} {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1
        )


def matched(measured: Sequence[Variant], built: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return built networks in their order, each with the measurements of its name; refuse other names.

    A quantity that was not measured keeps its computed value.
    """
    rows = {one.name: one for one in measured}
    names = [one.name for one in built]
    if set(rows) != set(names):
        raise RequestError(
            f"the measured networks are {', '.join(rows)}, but those that run are {', '.join(names)}; "
            "measure these with `driftlab profile`, or set run_networks: false in this workload"
        )
    return tuple(
        replace(
            one,
            latency_s=(row := rows[one.name]).latency_s,
            accuracy=one.accuracy if row.accuracy is None else row.accuracy,
            memory_bytes=row.memory_bytes or one.memory_bytes,
            weight_bytes=one.memory_bytes if row.weight_bytes is None else row.weight_bytes,
            energy_j=one.energy_j if row.energy_j is None else row.energy_j,
        )
        for one in built
    )


def knee(variants: Sequence[Variant]) -> int:
    """Return the knee: the variant farthest above the line of accuracy over log size."""
    size = np.log([max(variant.memory_bytes, 1) for variant in variants])
    if np.ptp(size) == 0:  # of unknown or equal size: order by latency
        size = np.log([variant.latency_s for variant in variants])
    accuracy = np.array([variant.accuracy or 0.0 for variant in variants])
    if np.ptp(size) == 0 or np.ptp(accuracy) == 0:
        return int(size.argmin())
    smallest, largest = int(size.argmin()), int(size.argmax())
    along = (size - size[smallest]) / (size[largest] - size[smallest])
    above = accuracy - (accuracy[smallest] + along * (accuracy[largest] - accuracy[smallest]))
    return int(above.argmax())


def paged_bytes(variants: Sequence[Variant], before: int | None, after: int | None, *, nested: bool) -> tuple[int, int]:
    """Return the bytes paged in and out by a switch of networks.

    Nested networks page the difference, networks with parts the parts that differ, others all bytes.
    """
    old_bytes, new_bytes = (0 if index is None else variants[index].stored_bytes for index in (before, after))
    if before == after:
        return 0, 0
    old, new = (dict(() if index is None else variants[index].parts) for index in (before, after))
    if old or new:
        loaded = sum(size for name, size in new.items() if name not in old)
        return loaded, sum(size for name, size in old.items() if name not in new)
    return (max(0, new_bytes - old_bytes), max(0, old_bytes - new_bytes)) if nested else (new_bytes, old_bytes)
