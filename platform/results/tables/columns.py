"""Descriptions of columns and tables: type, unit, meaning, and the schema version in every file."""

from __future__ import annotations

import pyarrow as pa

# Major.minor. A changed name, type or meaning of a column raises the major version, and only the present one is read.
# Changed values raise the minor version. A new table or nullable column raises none, as files list their columns.
SCHEMA_VERSION = "5.1"
HOST = "host_"
# Columns of scores. Systems are ranked by the live one; claims read the one of the papers, where late predictions count
# as if they were in time.
LIVE_SCORE, PAPER_SCORE = "score_live", "score"

TEXT, COUNT, BYTES, REAL, FLAG = pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.bool_()
INDEX, PNG = pa.int32(), pa.binary()


def column(name: str, kind: pa.DataType, meaning: str, unit: str = "", *, null: str = "") -> pa.Field:
    """Describe a column; `null` states when a value is missing, without it values are never missing.

    A nullable column is null where the file of an older run lacks it.
    """
    metadata = {"meaning": meaning, "unit": unit}
    if null:
        metadata["null"] = null
    if name.startswith(HOST):
        metadata["host"] = "true"
    return pa.field(name, kind, nullable=bool(null), metadata=metadata)


PLACE = (column("device", TEXT, "which device"), column("app", TEXT, "which application on it"))


def table_of(name: str, meaning: str, *columns: pa.Field) -> pa.Schema:
    """Describe a table of cells."""
    cell = column("cell", TEXT, "one system on one workload with one fleet and one seed")
    return pa.schema([cell, *columns], metadata=labels(name, meaning))


def labels(table: str, meaning: str) -> dict[str, str]:
    """Return the metadata that every file of a table has."""
    return {"driftlab.table": table, "driftlab.schema": SCHEMA_VERSION, "meaning": meaning}


def note(described: pa.Field | pa.Schema, key: str) -> str:
    """Read a note of a column or a table; empty if it has none."""
    found: bytes = (described.metadata or {}).get(key.encode(), b"")
    return found.decode()


def ordered(version: str) -> tuple[int, int]:
    """Split a version into two comparable numbers; (0, 0) if the text is no version."""
    major, _, minor = version.partition(".")
    return (int(major), int(minor or 0)) if major.isdecimal() and (minor or "0").isdecimal() else (0, 0)
