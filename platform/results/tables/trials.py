"""Write and read the trials of a search: one file per table and trial.

A trial counts once its `trials` file is there, which is written last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftlab.errors import DataError, first_line
from driftlab.platform.results.tables.columns import SCHEMA_VERSION, ordered
from driftlab.platform.results.tables.recorder import files_of, write_table
from driftlab.platform.results.tables.schema import version_of
from driftlab.platform.results.tables.search import SEARCH_TABLES


def write_trial(directory: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the rows of one trial, those of `trials` last."""
    (trial,) = rows["trials"]
    for name in ("settings", "measures", "trials"):
        table = pa.Table.from_pylist([{**trial_key(trial), **row} for row in rows[name]], SEARCH_TABLES[name])
        write_table(table, _file(directory, name, trial["stage"], trial["trial"]))


def trial_key(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of a trial: its stage and number."""
    return {"stage": trial["stage"], "trial": trial["trial"]}


def read_trials(directory: Path, table: str = "trials") -> pa.Table:
    """Read a table of a search, in the order of trials; DataError for a file that cannot be read."""
    schema = SEARCH_TABLES[table]
    parts = [_read(file, schema) for file in files_of(directory / "tables", table) if _counts(directory, file)]
    whole = pa.concat_tables(parts) if parts else schema.empty_table()
    return whole.sort_by([("stage", "descending"), ("trial", "ascending")])


def _counts(directory: Path, file: Path) -> bool:
    """Return whether the trial of a file is complete."""
    return (directory / "tables" / "trials" / file.name).is_file()


def _read(file: Path, schema: pa.Schema) -> pa.Table:
    try:
        found = pq.read_table(file, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"'{file}' cannot be read ({first_line(error)}). Remove it and its namesakes in the other tables: "
            "`driftlab tune --resume` runs the trial again."
        ) from error
    if ordered(version_of(found.schema))[0] != ordered(SCHEMA_VERSION)[0]:
        raise DataError(f"'{file}' was written by another version of driftlab; read it with that one.")
    columns = [
        found[field.name] if field.name in found.column_names else pa.nulls(len(found), field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _file(directory: Path, table: str, stage: str, trial: int) -> Path:
    return directory / "tables" / table / f"{stage}-{trial:06d}.parquet"
