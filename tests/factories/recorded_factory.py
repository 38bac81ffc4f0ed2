"""Small tables in `fixtures/claims`, in named sets, and the recorded verdicts of claims on them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tables_factory import Made

from driftlab.platform.results.claims.base import every_claim, judge
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.schema import TABLES

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "claims"
Said = dict[str, Any]  # word, note, numbers (value, low, high, n), and values by seed


def said() -> dict[str, dict[str, Said]]:
    """Read the recorded verdicts, by set of tables and claim."""
    found: dict[str, dict[str, Said]] = json.loads((RECORDED / "claims.json").read_text(encoding="utf-8"))
    return found


def tables_of(name: str) -> Made:
    """Read a set of tables."""
    spec, runs = json.loads((RECORDED / "specs.json").read_text(encoding="utf-8"))[name], _rows("runs", name)
    made = Made(spec, runs=[{"system": system} for system in runs.column("system").unique().to_pylist()])
    for file in RECORDED.glob("*.parquet"):
        rows, columns = _rows(file.stem, name).to_pandas(), made.frame(file.stem).columns
        assert set(rows) <= set(columns), f"'{file.name}' has columns of another schema"
        made._frames[file.stem] = rows.reindex(columns=columns)
    return made


def _rows(table: str, name: str) -> pa.Table:
    return _table(table).filter(pc.equal(_table(table)["set"], name)).drop_columns(["set"])


@cache
def _table(name: str) -> pa.Table:
    return pq.read_table(RECORDED / f"{name}.parquet")


def verdicts_of(tables: Tables, names: Iterable[str] = ()) -> dict[str, Said]:
    """Judge all claims, or those named, and keep those that have a number on these tables."""
    found = {}
    for name in names or every_claim():
        claim = every_claim()[name]
        verdict = judge(claim, claim.measure(tables))
        if (one := verdict.measured) is not None:
            by_seed = {str(seed): value for seed, value in one.by_seed.items()} if one.by_seed else None
            numbers = [one.value, one.low, one.high, one.n]
            found[name] = {"word": verdict.result, "note": verdict.note, "numbers": numbers, "by_seed": by_seed}
    return found


def add(name: str, tables: Tables) -> None:
    """Record another set of tables, as for a claim of a new relation, with the verdicts on it."""
    for table, schema in TABLES.items():
        frame, file = tables.frame(table), RECORDED / f"{table}.parquet"
        if frame.empty:
            continue
        plain = [pa.field(one.name, getattr(one.type, "value_type", one.type)) for one in schema]
        rows = pa.Table.from_pandas(frame.reindex(columns=schema.names), pa.schema(plain), preserve_index=False)
        rows = rows.replace_schema_metadata(None).add_column(0, "set", pa.array([name] * len(rows)))
        others = [_table(table)] if file.is_file() else []
        pq.write_table(pa.concat_tables([*others, rows], promote_options="default"), file, compression="zstd")
    _table.cache_clear()
    _write("specs.json", name, dict(tables.run.spec))
    _write("claims.json", name, verdicts_of(tables_of(name)))


def _write(file: str, name: str, value: Any) -> None:
    known = json.loads((RECORDED / file).read_text(encoding="utf-8"))
    text = json.dumps({**known, name: value}, ensure_ascii=False, indent=1)
    (RECORDED / file).write_text(text + "\n", encoding="utf-8")
