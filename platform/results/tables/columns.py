"""How columns and tables are described: type, unit, meaning, and what older runs hold where a column is newer."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

# Major.minor. A new column or table raises the minor version: files of all of them from OLDEST on read (see
# `recorder.read_file`). A column that changes its meaning or type raises the major version.
SCHEMA_VERSION = "4.4"
OLDEST = "4.4"  # no release wrote an older one
FIRST = "4"  # version that a table names by default as the one that added it, in the metadata of every file
HOST = "host_"

TEXT, COUNT, BYTES, REAL, FLAG = pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.bool_()
INDEX, PNG = pa.int32(), pa.binary()


def column(
    name: str, kind: pa.DataType, meaning: str, unit: str = "", *, null: str = "", before: Any = None
) -> pa.Field:
    """Describe a column; `null` says when a value is missing, and without it a value may never be missing.

    A newer column is null where older runs lack it; `before` is what it holds there instead.
    """
    metadata = {"meaning": meaning, "unit": unit}
    if before is not None:
        metadata["before"] = json.dumps(before)
    if null:
        metadata["null"] = null
    if name.startswith(HOST):
        metadata["host"] = "true"
    return pa.field(name, kind, nullable=bool(null), metadata=metadata)


PLACE = (column("device", TEXT, "which device"), column("app", TEXT, "which application on it"))


def table_of(name: str, meaning: str, *columns: pa.Field, since: str = FIRST) -> pa.Schema:
    """Describe a table; runs that are older than `since` have none."""
    cell = column("cell", TEXT, "one system on one workload with one fleet and one seed")
    metadata = {"driftlab.table": name, "driftlab.schema": SCHEMA_VERSION, "driftlab.since": since, "meaning": meaning}
    return pa.schema([cell, *columns], metadata=metadata)


def note(described: pa.Field | pa.Schema, key: str) -> str:
    """Read a note of a column or a table; empty if it has none."""
    found: bytes = (described.metadata or {}).get(key.encode(), b"")
    return found.decode()


def ordered(version: str) -> tuple[int, int]:
    """Split a version into numbers that compare; (0, 0) for what is none."""
    major, _, minor = version.partition(".")
    return (int(major), int(minor or 0)) if major.isdecimal() and (minor or "0").isdecimal() else (0, 0)
