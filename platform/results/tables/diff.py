"""Compare two runs bit by bit, apart from the columns of the host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftlab.errors import quoted
from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.results.tables.run_pair import compare_figures, figures_of
from driftlab.platform.results.tables.schema import TABLES, host_columns
from driftlab.platform.results.tables.systems import all_params, every_system

# How and where a run is executed; tables do not depend on it.
IRRELEVANT = frozenset(
    {"backend", "workers", "address", "clock", "out", "resume", "devices_per_actor", "racks", "packing", "faults"}
)


def differences(a: Run | str | Path, b: Run | str | Path) -> list[str]:
    """List the differences of two runs, one line each: settings, cells, then table, cell, column and row.

    Columns and defaults that the version of one run did not have are not compared.
    """
    left, right = (run if isinstance(run, Run) else open_run(run) for run in (a, b))
    lines = list(spec_differences(*_comparable(left.spec, right.spec)))
    cells = [set(run.cells()) for run in (left, right)]
    lines += [f"cell '{cell}': only in {left.path}" for cell in sorted(cells[0] - cells[1])]
    lines += [f"cell '{cell}': only in {right.path}" for cell in sorted(cells[1] - cells[0])]
    for name in TABLES:
        if name == "systems":
            continue  # the spec has the same settings, without defaults that only one version has
        shared = {cell: [run.table(name, [cell]) for run in (left, right)] for cell in sorted(cells[0] & cells[1])}
        both = (left.columns(name) & right.columns(name)) - host_columns(name)
        if not both:
            continue  # a table that the version of one run did not have
        columns = [column for column in TABLES[name].names if column in both]
        for cell, tables in shared.items():
            ours, theirs = (table.select(columns) for table in tables)
            lines += [f"table '{name}', cell '{cell}', {line}" for line in table_differences(ours, theirs)]
    return lines


def figure_differences(a: Run | str | Path, b: Run | str | Path, tolerance: float) -> list[str]:
    """List the figures of two runs that differ by more than a share of the larger one, except times."""
    left, right = (run if isinstance(run, Run) else open_run(run) for run in (a, b))
    cells = (set(figures_of(left)), set(figures_of(right)))
    lines = [f"{cell}: only in one of the runs" for cell in sorted(cells[0] ^ cells[1])]
    for one in compare_figures(left, right):
        if not one.within(tolerance):
            share = "" if one.share is None else f" ({one.share:.1%})"
            lines.append(f"{one.cell}, {one.name}: {_figure(one.first)} vs {_figure(one.second)}{share}")
    return lines


def _figure(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"


def _comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two specs with their systems by name and all defaults written out."""
    left, right = ({part["name"]: part for part in every_system(spec)} for spec in (a, b))
    shared = left.keys() & right.keys()
    ours = {name: _params(part, right[name]) if name in shared else part for name, part in left.items()}
    theirs = {name: _params(part, left[name]) if name in shared else part for name, part in right.items()}
    plain = [{key: spec[key] for key in spec if key not in ("systems", "bounds", "bound_rows")} for spec in (a, b)]
    return {**plain[0], "systems": ours}, {**plain[1], "systems": theirs}


def _params(part: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge defaults with given parameters, without defaults of parameters that the other version lacks."""
    slots = {}
    for family in FAMILIES:
        mine, theirs = all_params(part[family]), all_params(other[family])
        unknown = part[family].get("defaults", {}).keys() - theirs.keys()
        same = part[family]["name"] == other[family]["name"]
        kept = {key: value for key, value in mine.items() if not same or key not in unknown}
        slots[family] = {"name": part[family]["name"], **kept}
    return {**part, **slots}


def spec_differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every setting that differs, with both values."""
    for key in sorted(set(a) | set(b), key=str):
        if not prefix and key in IRRELEVANT:
            continue
        ours, theirs = a.get(key), b.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from spec_differences(ours, theirs, f"{prefix}{key}.")
        elif ours != theirs:
            yield f"spec '{prefix}{key}': {quoted(ours)} vs {quoted(theirs)}"


def table_differences(a: pa.Table, b: pa.Table) -> Iterator[str]:
    """Yield a line for each column that differs, or one for another number of rows."""
    if len(a) != len(b):
        yield f"{len(a)} rows vs {len(b)} rows"
        return
    for column in a.column_names:
        ours, theirs = (_bits(table[column].combine_chunks()) for table in (a, b))
        unequal = pc.or_(
            pc.fill_null(pc.not_equal(ours, theirs), False),
            pc.xor(pc.is_null(ours), pc.is_null(theirs)),
        )
        row = pc.index(unequal, True).as_py()
        if row >= 0:
            values = " vs ".join(_shown(table[column][row].as_py()) for table in (a, b))
            yield f"column '{column}', row {row}: {values} ({pc.sum(unequal)} of {len(a)} rows differ)"


def _bits(array: pa.Array) -> pa.Array:
    """View a float as its bits, so that -0.0 differs from 0.0 and NaN equals itself."""
    return array.view(pa.int64()) if pa.types.is_float64(array.type) else array


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes ({hashlib.sha256(value).hexdigest()[:8]})"
    return "null" if value is None else repr(value)
