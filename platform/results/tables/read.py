"""Open a run folder and read its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftlab.errors import MAX_LINE, DataError, RequestError, as_typed, first_line, shortened, unknown_name
from driftlab.platform.results.tables.columns import ordered
from driftlab.platform.results.tables.origin import seal_of
from driftlab.platform.results.tables.recorder import check_version, files_of, read_file, table_file, written_by
from driftlab.platform.results.tables.schema import IDENTITY, TABLES, VIEWS
from driftlab.platform.results.tables.search import SEARCH_TABLES
from driftlab.platform.results.tables.trials import read_trials
from driftlab.renamed import name_hint

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import BaseModel

P = ParamSpec("P")
T = TypeVar("T")
SEARCHES = "searches"  # the key of a spec that lists searches, one per system
SPEC_FIX = "Undo the changes in this file, or start the experiment again."
UNKNOWN_COLUMN, UNKNOWN_TABLE = r'[Cc]olumn (?:named )?"([^"]+)"', r"Table with name (\w+)"  # in DuckDB's messages
SHOWN = ("score_live", "score", "kbps", "uplink_kbps", "energy_j")  # columns of a run in a notebook
MAX_SPEC_VALUES = 1_000_000  # in spec.yaml, which holds every default of every system


@dataclass(frozen=True)
class Run:
    """A run folder; every call reads the cells complete at that moment, also of an unfinished run."""

    path: Path
    spec: Mapping[str, Any]  # the request with every default
    info: Mapping[str, Any]  # versions, host and seeds

    def __repr__(self) -> str:
        """Return one line: the folder and the size of the run."""
        if "space" in self.spec:
            return (
                f"Run({str(self.path)!r}: search {self.spec['name']}, {len(read_trials(self.path, 'trials'))} trials)"
            )
        parts = ", ".join(f"{len(self.spec[key])} {key}" for key in ("systems", "workloads", "seeds"))
        cells = len(files_of(self.path / "tables", "runs"))
        return f"Run({str(self.path)!r}: {self.spec['name']}, {parts}, {cells} complete cells)"

    def _repr_html_(self) -> str:
        """Return the line and the mean scores of the systems, for a notebook."""
        rows = self.frame("trials" if "space" in self.spec else "runs")
        by = "status" if "space" in self.spec else "system"
        shown = rows[[by, *(name for name in SHOWN if name in rows)]].groupby(by, sort=False).mean()
        return f"<p>{escape(repr(self))}</p>{shown.dropna(axis='columns', how='all').round(4).to_html()}"

    def cells(self) -> list[str]:
        """List the complete cells by name."""
        files = files_of(self.path / "tables", "runs")
        found = [_read(file, "runs", self.path, ("cell",))["cell"].to_pylist() for file in files]
        return sorted(cell for names in found for cell in names)

    def table(self, name: str, cells: Sequence[str] | None = None) -> pa.Table:
        """Read one table over all complete cells, sorted by name, with the columns of the present schema.

        A view (`scores`, `class_scores`) is a table with the system, workload, fleet, seed and bound of every row.
        Several tables are read faster, and of the same moment, if they get the `cells` of one call.
        """
        if name in SEARCH_TABLES:
            return read_trials(self.path, name)
        if name in VIEWS:
            cells = self.cells() if cells is None else cells
            return _with_identity(self.table(VIEWS[name], cells), self.table("runs", cells))
        if name not in TABLES:
            raise unknown_name("table", name, [*TABLES, *VIEWS, *SEARCH_TABLES])
        parts = [self._part(name, cell) for cell in (self.cells() if cells is None else cells)]
        return pa.concat_tables(parts) if parts else TABLES[name].empty_table()

    def _part(self, name: str, cell: str) -> pa.Table:
        """Read the rows of one cell; empty if the version that wrote the cell had no such table."""
        tables = self.path / "tables"
        file = table_file(tables, name, cell)
        if not file.exists():
            seal = seal_of(table_file(tables, "runs", cell))
            if seal is not None and name not in seal.files:
                return TABLES[name].empty_table()
        return _read(file, name, self.path)

    def versions(self) -> list[str]:
        """List the schema versions of the cells."""
        return sorted({written_by(file) for file in files_of(self.path / "tables", "runs")}, key=ordered)

    def columns(self, name: str) -> set[str]:
        """Return the columns of a table that are in both the present schema and every file of the run."""
        schemas = [pq.read_schema(file).names for file in files_of(self.path / "tables", name)]
        return set(TABLES[name].names).intersection(*schemas) if schemas else set()

    def frame(self, name: str, cells: Sequence[str] | None = None) -> pd.DataFrame:
        """Read one table as a pandas frame."""
        return self.table(name, cells).to_pandas()

    def sql(self, query: str) -> pa.Table:
        """Run an SQL query (DuckDB) on the tables and views, which have their names."""
        import duckdb

        with duckdb.connect() as connection:
            columns: dict[str, None] = {}
            cells = self.cells()
            for name in (*TABLES, *VIEWS, *SEARCH_TABLES):
                if re.search(rf"\b{name}\b", query, re.IGNORECASE):  # read only the tables that the query names
                    connection.register(name, table := self.table(name, cells))
                    columns |= dict.fromkeys(table.column_names)
            try:
                return connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise RequestError(f"The query failed: {_sql_fault(str(error), columns)}") from error


class Tables:
    """A run's tables as pandas frames, each read once, with a cache of results computed from them.

    All have the cells that were complete when the first one was read.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._frames: dict[str, pd.DataFrame] = {}
        self._results: dict[tuple[Any, ...], Any] = {}

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table, read at most once; callers must not change it."""
        if name not in self._frames:
            others = name in TABLES and name != "runs"
            self._frames[name] = self.run.frame(name, self.frame("runs")["cell"].tolist() if others else None)
        return self._frames[name]

    def once(self, make: Callable[Concatenate[Tables, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function of these tables, called at most once; callers must not change it."""
        key = (make, args, tuple(kwargs.items()))
        if key not in self._results:
            self._results[key] = make(self, *args, **kwargs)
        found: T = self._results[key]
        return found


class SalvagedTables(Tables):
    """Tables of a run that may be damaged: one that cannot be read is empty, and `faults` has the reason.

    The table `runs` is the exception, without which there is nothing to report.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.faults: dict[str, str] = {}

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table, without rows if it cannot be read."""
        try:
            return super().frame(name)
        except DataError as error:
            if name == "runs":  # without it nothing is known about the run
                raise
            self.faults[name] = str(error)
            self._frames[name] = TABLES[name].empty_table().to_pandas()
            return self._frames[name]

    def unfilled(self) -> list[str]:
        """List the tables without rows."""
        return [name for name in TABLES if self.frame(name).empty]


def _sql_fault(message: str, columns: Collection[str]) -> str:
    """Shorten a message of DuckDB; for an unknown column or table, one line and the new name."""
    column, table = (re.search(pattern, message) for pattern in (UNKNOWN_COLUMN, UNKNOWN_TABLE))
    hint = name_hint(column[1], columns) if column else ""
    if table:
        hint = name_hint(table[1], [*TABLES, *VIEWS, *SEARCH_TABLES])
    return f"{shortened(message.splitlines()[0], MAX_LINE)}{hint}" if hint else shortened(message, MAX_LINE)


def open_run(path: str | Path) -> Run:
    """Open a run folder; DataError with the file and the fix if it is damaged or no run folder."""
    folder = Path(path).expanduser().absolute()
    return Run(path=folder, spec=read_spec(folder), info=read_info(folder))


def newest_run(start: str | Path = ".", *, search: bool = False) -> Path:
    """Return the newest run, or search, in `runs/` of a folder and of the folders above it."""
    here, kind = Path(start).absolute(), "search" if search else "run"
    specs = [spec for folder in (here, *here.parents) for spec in (folder / "runs").glob("*/spec.yaml")]
    for spec in sorted(specs, key=lambda file: file.stat().st_mtime, reverse=True):
        if _kind_of(spec) == kind:
            return spec.parent
    raise RequestError(
        f"There is no {kind} in {here / 'runs'}, nor in a folder runs above. Give the folder of a {kind}, or make one "
        "first."
    )


def _kind_of(spec: Path) -> str:
    """Return run, search or searches by the top keys of a spec, without parsing the rest."""
    lines = spec.read_text(encoding="utf-8", errors="replace").splitlines()
    keys = {line.partition(":")[0] for line in lines if line[:1].isalpha()}
    return SEARCHES if SEARCHES in keys else "search" if "space" in keys else "run"


def read_spec(folder: Path) -> Mapping[str, Any]:
    """Read the spec of a run; unknown keys are allowed, since another version may have written them."""
    from driftlab.platform.core.spec import Spec

    document = read_request(folder)
    if isinstance(listed := document.get(SEARCHES), dict):
        raise DataError(
            f"'{folder}' holds a search for each of {', '.join(map(str, listed))}; name the folder of one in it."
        )
    experiment = document.get("experiment")  # of a search, whose spec has further settings
    whole = {**experiment, **document} if isinstance(experiment, dict) else document
    _check_shape(whole, Spec, folder / "spec.yaml", SPEC_FIX)
    return document


def read_request(folder: Path) -> dict[str, Any]:
    """Read the `spec.yaml` of a run unchanged; an edited one may have systems without all parameters."""
    import yaml

    from driftlab.platform.core.documents import read_text, read_yaml

    if not folder.is_dir():
        fault = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"No run folder at '{folder}': it {fault}. Give a folder that `driftlab run` made.")
    _refuse_other_versions(folder)
    file = folder / "spec.yaml"
    try:
        spec = read_yaml(read_text(file), MAX_SPEC_VALUES, stored=True)
    except FileNotFoundError:
        raise DataError(
            f"'{folder}' is not a run folder: it has no spec.yaml. Give one that `driftlab run` made."
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RequestError) as error:
        raise DataError(f"'{file}' cannot be read ({first_line(error)}). Start the experiment again.") from error
    return _mapping(spec, file, "mapping of settings", SPEC_FIX)


def _refuse_other_versions(folder: Path) -> None:
    """Refuse a folder whose tables have another major version: its spec may have another shape too."""
    for file in (*files_of(folder / "tables", "runs")[:1], *files_of(folder / "tables", "trials")[:1]):
        with suppress(OSError, pa.ArrowException):  # reading its table refuses a damaged file
            if file.is_file():  # opening a pipe would block
                check_version(written_by(file), folder)


def read_info(folder: Path) -> Mapping[str, Any]:
    """Read versions, host and seeds of a run."""
    from driftlab.platform.core.documents import read_json, read_text
    from driftlab.platform.core.spec import Info

    file = folder / "run.json"
    try:
        info = read_json(read_text(file))
    except FileNotFoundError:
        return {}  # the run was killed after it wrote its spec and before this file
    except (OSError, ValueError, DataError) as error:
        raise DataError(f"'{file}' cannot be read ({first_line(error)}). {_fix(folder)}") from error
    fix = f"Remove it: {_fix(folder)}"
    document = _mapping(info, file, "JSON object", fix)
    _check_shape(document, Info, file, fix)
    return document


def _mapping(document: Any, file: Path, kind: str, fix: str) -> dict[str, Any]:
    """Return a document that is a mapping."""
    if not isinstance(document, dict):
        raise DataError(f"'{file}' is not a {kind}. {fix}")
    return document


def _check_shape(document: Mapping[str, Any], model: type[BaseModel], file: Path, fix: str) -> None:
    """Refuse a document of another shape; unknown keys, perhaps of another version, are allowed."""
    from driftlab.platform.core.documents import shape_fault

    if fault := shape_fault(model, document, lenient=True):
        raise DataError(f"'{file}' cannot be read ({fault}). {fix}")


def _with_identity(rows: pa.Table, runs: pa.Table) -> pa.Table:
    """Insert the columns that identify the cell in front of every row of a table."""
    places = pc.index_in(rows["cell"], runs["cell"].combine_chunks())
    identity = {name: runs[name].combine_chunks().take(places) for name in IDENTITY}
    return pa.table({"cell": rows["cell"], **identity, **{name: rows[name] for name in rows.column_names[1:]}})


def _read(file: Path, table: str, folder: Path, only: Sequence[str] = ()) -> pa.Table:
    try:
        return read_file(file, table, only)
    except FileNotFoundError:
        raise DataError(f"'{file}' is missing though its cell is complete. {_fix(folder)}") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"'{file}' cannot be read ({first_line(error)}). {_fix(folder)}") from error


def _fix(folder: Path) -> str:
    return f"`{as_typed('driftlab', 'run', '--resume', folder)}` writes it again."
