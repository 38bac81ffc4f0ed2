"""Writes the tables of a run: whole files per cell, in an order that makes interruptions harmless."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from driftlab.errors import DataError
from driftlab.platform.core.files import atomic_write, make_folder, sync, write_atomically
from driftlab.platform.core.records import Columns, Reply, Rows
from driftlab.platform.results.tables.columns import SCHEMA_VERSION, ordered
from driftlab.platform.results.tables.origin import Origin, Seal, digest_of, seal_of, with_seal
from driftlab.platform.results.tables.schema import TABLES, version_of

FAILED = "it had failed"  # why a cell runs again although its files are intact
OTHERS = tuple(name for name in TABLES if name != "runs")  # tables of a cell that are written before its `runs`
SERIAL_ROWS = 10_000  # a file of fewer rows is read faster without threads
NAME_LIMIT = 100  # of a file's stem; file systems allow 255 bytes for everything


class Recorder:
    """Writes the tables of one run; a cell is complete once it has a `runs` file, which is written last."""

    def __init__(self, directory: str) -> None:
        self._tables = Path(directory).absolute() / "tables"

    def write(self, cell: str, rows: Rows, origin: Origin | None = None) -> Reply:
        """Replace all tables of a cell; the facts of the reply are the number of rows per table.

        Rows keep their order. The column `cell` is filled in if the chunks lack it. The `runs` file holds the cell's
        origin and the digests of its other files.
        """
        if unknown := set(rows) - set(TABLES):
            raise ValueError(f"no such table: {', '.join(sorted(unknown))}; the schema has {', '.join(TABLES)}")
        tables = {name: as_table(name, cell, rows.get(name, ())) for name in TABLES}
        if len(tables["runs"]) != 1:
            raise ValueError(f"cell '{cell}' has {len(tables['runs'])} rows for table 'runs', it must have one")
        last = table_file(self._tables, "runs", cell)
        if last.exists():
            last.unlink()
            sync(last.parent)
        digests = {}
        for name in OTHERS:
            file = table_file(self._tables, name, cell)
            if len(tables[name]):
                write_table(tables[name], file)
            else:
                _write_empty(name, file)
            digests[name] = digest_of(file)
        write_table(with_seal(tables["runs"], Seal(origin, digests)), last)
        return Reply(facts={name: len(table) for name, table in tables.items()})


def reason_to_repeat(tables: Path, cell: str) -> str | None:
    """Return why a cell with a `runs` file must run again on resume; None if all its files can be kept.

    A cell of another minor schema version or with other columns runs again, as a run must not mix versions. Another
    major version raises DataError, so that its files are not overwritten.
    """
    file = table_file(tables, "runs", cell)
    row = _readable(file, "runs")
    if row is None or len(row) != 1:
        return "its 'runs' file cannot be read"
    if row["cell"][0].as_py() != cell:
        return "its 'runs' file holds another cell"
    if row["status"][0].as_py() != "done":
        return FAILED
    if (version := written_by(file)) != SCHEMA_VERSION:
        return f"its tables have schema version {version}, the present one is {SCHEMA_VERSION}"
    seal = seal_of(file)
    if seal is None:
        return "an older driftlab wrote it, without its spec and code versions"
    if row.schema.names != _columns(file):
        return "its tables have other columns than the present schema"
    wrong = (name for name in OTHERS if not _as_written(table_file(tables, name, cell), name, seal))
    return next((f"its '{name}' file is missing, damaged or not the one that was written" for name in wrong), None)


def _as_written(file: Path, table: str, seal: Seal) -> bool:
    """Return whether a file is unchanged and has the present columns."""
    if _readable(file, table) is None or digest_of(file) != seal.files.get(table):
        return False
    return bool(_columns(file) == TABLES[table].names)


def _columns(file: Path) -> list[str]:
    names: list[str] = pq.read_schema(file).names
    return names


def files_of(tables: Path, table: str) -> list[Path]:
    """List the files of a table; DataError if its folder is a broken link, which would list as empty."""
    for folder in (tables, tables / table):
        if not folder.is_dir() and (folder.is_symlink() or folder.exists()):
            raise DataError(f"'{folder}' is a link or a file, not a folder of tables. Put the folder back.")
    return sorted((tables / table).glob("*.parquet"))


def table_file(tables: Path, table: str, cell: str) -> Path:
    """Return a cell's file: unique per cell, and readable if the cell's name is a valid file name."""
    stem = re.sub(r"[^A-Za-z0-9.=+-]+", "_", cell).strip("._")[:NAME_LIMIT]
    if not stem or stem != cell:
        stem = f"{stem}-{hashlib.sha256(cell.encode()).hexdigest()[:8]}"
    return tables / table / f"{stem}.parquet"


def read_file(file: Path, table: str, only: Sequence[str] = ()) -> pa.Table:
    """Read a file or some of its columns in the present schema; OSError or ArrowException if damaged.

    A nullable column that the file lacks is null, an unknown column is left out. Another major version raises
    DataError.
    """
    if file.exists() and not file.is_file():
        raise OSError(f"'{file.name}' is no regular file")  # opening a pipe would block
    schema = TABLES[table]
    schema = pa.schema([schema.field(name) for name in only]) if only else schema
    if _is_empty(file, table):  # most tables of most cells
        return schema.empty_table()
    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        found = parquet.schema_arrow
        _check(found, table, file)
        present = set(found.names)
        threads = parquet.metadata.num_rows > SERIAL_ROWS
        content = parquet.read([name for name in schema.names if name in present], use_threads=threads)
    columns = [content[field.name] if field.name in present else pa.nulls(len(content), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def written_by(file: Path) -> str:
    """Read the schema version of a file."""
    return version_of(pq.read_schema(file))


def check_version(version: str, folder: Path) -> None:
    """Refuse a folder with tables of another major version; `read_file` refuses a text that is no version."""
    ours, theirs = ordered(SCHEMA_VERSION)[0], ordered(version)[0]
    if theirs not in (0, ours):
        raise DataError(
            f"'{folder}' has tables of schema version {version}, and this driftlab reads {ours}.x. Read them with the "
            "driftlab that wrote them; its version and commit are in run.json."
        )


def _check(found: pa.Schema, table: str, file: Path) -> None:
    version = version_of(found)
    check_version(version, file.parents[2])
    if (
        ordered(version)[0] != ordered(SCHEMA_VERSION)[0]
        or (found.metadata or {}).get(b"driftlab.table") != table.encode()
    ):
        raise pa.ArrowInvalid(f"schema version {version or 'unknown'}, this is {SCHEMA_VERSION}, or no '{table}' table")
    if found.equals(TABLES[table]):  # the usual case, which the comparison of fields would take longer to find
        return
    present = set(found.names)
    wrong = [
        field.name for field in TABLES[table] if field.name in present and found.field(field.name).type != field.type
    ]
    missing = [field.name for field in TABLES[table] if not field.nullable and field.name not in present]
    if missing:
        raise pa.ArrowInvalid(f"column '{missing[0]}' is missing, which a '{table}' table always has")
    if wrong:
        field = TABLES[table].field(wrong[0])
        raise pa.ArrowInvalid(f"column '{field.name}' is {found.field(field.name).type} instead of {field.type}")


def as_table(table: str, cell: str, chunks: Sequence[Columns]) -> pa.Table:
    """Join chunks of columns to one Arrow table of the schema; NaN (not measured) becomes null."""
    schema = TABLES[table]
    if not chunks:
        return schema.empty_table()
    named = [{"cell": cell, **chunk} for chunk in chunks]
    lengths = [_rows(table, schema, chunk) for chunk in named]
    columns = [_column(table, field, [chunk.get(field.name) for chunk in named], lengths) for field in schema]
    joined = pa.Table.from_arrays(columns, schema=schema)
    if set(joined["cell"].unique().to_pylist()) - {cell}:
        raise ValueError(f"table '{table}' holds rows of another cell than '{cell}'")
    return joined


def _rows(table: str, schema: pa.Schema, chunk: Columns) -> int:
    """Count the rows of a chunk; a chunk of scalars is one row."""
    if unknown := set(chunk) - set(schema.names):
        raise ValueError(f"table '{table}' has no column {', '.join(sorted(unknown))}")
    lengths = {name: len(values) for name, values in chunk.items() if not _is_scalar(values)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"table '{table}': columns of one chunk differ in length: {lengths}")
    return next(iter(lengths.values()), 1)


def _column(table: str, field: pa.Field, parts: Sequence[Any], lengths: Sequence[int]) -> pa.Array:
    try:
        array = _convert(_join(parts, lengths), field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"table '{table}', column '{field.name}' ({field.type}): {error}") from error
    if array.null_count and not field.nullable:
        raise ValueError(f"table '{table}', column '{field.name}': a value is missing and may not be")
    return array


def _join(parts: Sequence[Any], lengths: Sequence[int]) -> pa.Array:
    """Concatenate the chunks of a column in one conversion: a thousand devices send many small chunks."""
    if all(map(_is_scalar, parts)):
        values = pa.array([_plain(part) for part in parts], from_pandas=True)
        return values.take(pa.array(np.repeat(np.arange(len(parts)), lengths)))
    if all(isinstance(part, np.ndarray) for part in parts) and len({part.dtype.kind for part in parts}) == 1:
        return pa.array(np.concatenate(parts), from_pandas=True)
    spread = ([_plain(part)] * rows if _is_scalar(part) else part for part, rows in zip(parts, lengths, strict=True))
    return pa.array([_plain(value) for values in spread for value in values], from_pandas=True)


def _plain(value: Any) -> Any:
    """Unwrap a library's scalar."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _convert(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a wider number type only: a fraction never becomes a count, nor a number a text."""
    current = array.type
    number = pa.types.is_integer(current) or (pa.types.is_floating(current) and pa.types.is_floating(kind))
    if (
        current == kind
        or pa.types.is_null(current)
        or (number and (pa.types.is_integer(kind) or pa.types.is_floating(kind)))
    ):
        return array.cast(kind)
    raise TypeError(f"values are {current}")


def _is_scalar(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.ndim == 0
    return not isinstance(values, list | tuple | pa.Array | pa.ChunkedArray)


def _readable(file: Path, table: str) -> pa.Table | None:
    try:
        return read_file(file, table)
    except (OSError, pa.ArrowException):
        return None


def write_table(table: pa.Table, file: Path) -> None:
    """Write a file atomically and durably; the same table gives the same bytes."""
    make_folder(file.parent)
    with atomic_write(file) as draft:
        _write(table, draft)


def _write_empty(table: str, file: Path) -> None:
    """Write the file of a table without rows."""
    make_folder(file.parent)
    write_atomically(file, _empty_file(table))


def _is_empty(file: Path, table: str) -> bool:
    """Return whether a file is the one that this version writes for a table without rows."""
    empty = _empty_file(table)
    return file.stat().st_size == len(empty) and file.read_bytes() == empty


@cache
def _empty_file(table: str) -> bytes:
    """Return the bytes of a file without rows, which most files of most cells have."""
    sink = io.BytesIO()
    _write(TABLES[table].empty_table(), sink)
    return sink.getvalue()


def _write(table: pa.Table, where: Path | io.BytesIO) -> None:
    pq.write_table(table, where, compression="zstd", compression_level=3, write_page_checksum=True)
