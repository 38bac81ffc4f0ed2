"""Tables and numeric figures of the papers: a cell is a claim about a value and its sign.

The cells are data: `papers/PAPER.yaml` holds a list of tables with columns and rows. A row gives the paper's value for
each column (null: the paper has none) and the relation that measures it, or a claim that does (`claims`: one for each
column). Keys of a row come before those of its column, and those before keys of the table.

The sign is that of the difference from the cell in another column or row of the paper's table (`against`), or that of
the value itself beyond `neutral`: 0 for a difference, 1 for a factor. It is the same as in the paper if the whole
interval is on the paper's side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from driftlab.errors import unknown_name
from driftlab.platform.core.documents import read_yaml
from driftlab.platform.results.claims.base import (
    DASH,
    CellResult,
    Claim,
    Verdict,
    every_claim,
    format_interval,
    format_paper,
    format_value,
    measure_claim,
)
from driftlab.platform.results.claims.statistics import MORE_SEEDS, Measured
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.tables.read import Tables

PAPERS = Path(__file__).parent / "papers"
COLUMNS = ("cell", "paper", "ours", "95 % CI", "sign")
Part = Mapping[str, Any]  # a table, a row or a column
Line = Mapping[str, Any]  # of the ledger


@dataclass(frozen=True, kw_only=True)
class PaperCell(Claim):
    """A value of a paper's table."""

    row: str
    column: str
    takes: str  # the run that measures it: experiment, size and time
    claim: str = ""  # the claim whose statistic measures it
    benchmark: Mapping[str, Any] = field(default_factory=dict)  # that measures it in place of a run: see benchmarks.py
    against: Mapping[str, Any] = field(default_factory=dict)  # relation of the difference whose sign is compared
    beyond: float | None = None  # the paper's value of the other side of the comparison; None: no sign is compared

    @property
    def run(self) -> tuple[str, str]:
        """Return the experiment and the size of the run that it takes; a size is empty if none is named."""
        experiment, _, size = re.split("[,;]", self.takes)[0].partition(" with size=")
        return experiment, size

    def preferred(self, lines: Iterable[Line]) -> Line | None:
        """Return the line of the run that it takes, else of its experiment, else of any; the newest of these."""
        own = [line for line in lines if line["claim"] in {self.id, self.claim}]
        named = [line for line in own if (line["experiment"], line["size"]) == self.run]
        same = [line for line in own if line["experiment"] == self.experiment]
        return next(reversed(named or same or own), None)

    def sign_of(self, shown: Measured, tables: Tables) -> CellResult:
        """Compare the sign of the difference, or of the value itself, with the paper's."""
        if self.beyond is None or self.paper is None or self.paper == self.beyond:
            return "information"
        if not self.against:
            return self.sign_beyond(shown, self.beyond)
        difference = Claim(self.id, self.experiment, "", "", None, "", "info", self.against, "difference")
        found = measure_claim(difference, tables)
        return self.sign_beyond(found, 0.0) if isinstance(found, Measured) else "sign undecided"

    def sign_beyond(self, found: Measured, neutral: float) -> CellResult:
        """Compare the side of `neutral` on which the whole interval lies with the paper's side."""
        assert self.paper is not None, f"'{self.id}' has no value of the paper"
        assert self.beyond is not None, f"'{self.id}' compares no sign"
        low, high = (found.value,) * 2 if self.by_construction else (found.low, found.high)
        if low is None or high is None or low <= neutral <= high:
            return "sign undecided"
        return "same sign" if (low > neutral) == (self.paper > self.beyond) else "opposite sign"


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure of a paper."""

    id: str
    title: str
    source: str
    cells: tuple[PaperCell, ...]


@cache
def every_table() -> Mapping[str, PaperTable]:
    """Collect the tables of every paper."""
    files = sorted(PAPERS.glob("*.yaml"))
    tables = [_table(entry) for file in files for entry in read_yaml(file.read_text(encoding="utf-8"))]
    found = {table.id: table for table in tables}
    assert len(found) == len(tables), "two tables have the same name"
    return found


def table_of(name: str) -> PaperTable:
    """Return a table by its name."""
    if name not in every_table():
        raise unknown_name("table of a paper", name, every_table())
    return every_table()[name]


def compare(table: PaperTable, tables: Tables) -> list[Verdict]:
    """Measure every cell of a table; one that this run lacks is "not run", with the run that measures it."""
    return [_compare(cell, tables) for cell in table.cells]


def compared_with(tables: Tables) -> list[tuple[PaperTable, list[Verdict]]]:
    """Compare every table that the experiment of a run is for, or that names a run of it."""
    name = tables.run.spec.get("name")
    own = [
        table for table in every_table().values() if any(name in (cell.experiment, cell.run[0]) for cell in table.cells)
    ]
    return [(table, compare(table, tables)) for table in own]


def _compare(cell: PaperCell, tables: Tables) -> Verdict:
    found = measure_claim(cell, tables)
    if isinstance(found, Untestable):
        few = f"{found.reason}: " if found.reason.startswith(MORE_SEEDS) else ""
        return Verdict(cell, "not run", None, few + cell.takes)
    return Verdict(cell, cell.sign_of(found, tables), found, found.note)


def verdict_of(cell: PaperCell, line: Line | None) -> Verdict:
    """Return the result of a cell by its line in the ledger, or by that of its claim."""
    if line is None:
        return Verdict(cell, "not run", None, cell.takes)
    found = Measured(line["value"], line["low"], line["high"], line["n"], line["note"])
    if line["claim"] == cell.id:
        return Verdict(cell, line["verdict"], found, found.note)
    return Verdict(
        cell, "information" if cell.beyond is None else cell.sign_beyond(found, cell.beyond), found, found.note
    )


def as_rows(verdicts: Iterable[Verdict]) -> list[tuple[str, ...]]:
    """Return cells as rows of texts; a cell that was not run has the run that it takes."""
    return [
        (
            verdict.claim.sentence,
            format_paper(verdict.claim),
            format_value(verdict) if verdict.measured else "not run",
            format_interval(verdict),
            (DASH if verdict.result == "information" else verdict.result) if verdict.measured else verdict.note,
        )
        for verdict in verdicts
    ]


def _table(entry: Part) -> PaperTable:
    rows, columns = ([_named(part) for part in entry[key]] for key in ("rows", "columns"))
    cells = [
        _cell(entry, (row, column), rows, columns)
        for row in rows
        for index, column in enumerate(columns)
        if row["paper"][index] is not None
    ]
    return PaperTable(entry["id"], entry["title"], entry["source"], tuple(cells))


def _named(part: str | Part) -> Part:
    return {"name": part} if isinstance(part, str) else part


def _cell(table: Part, place: tuple[Part, Part], rows: Sequence[Part], columns: Sequence[Part]) -> PaperCell:
    """Make a cell of its row and its column (`place`)."""
    row, column = place
    keys = {**table, **column, **row}
    index = columns.index(column)
    name = row["claims"][index] if "claims" in row else row.get("claim", "")
    claim = every_claim()[name] if name else None
    less = [keys["minus"]] if "minus" in keys else []
    beyond, against, of = (
        keys.get("neutral"),
        {},
        claim.of if claim else _relation(keys, (table, column, row), place, less),
    )
    if "against" in keys:
        other_index, other = _other(keys["against"], place, rows, columns)
        beyond = other[0]["paper"][other_index]
        against = {**of, "systems": [*of["systems"], _system(*other)]}
    return PaperCell(
        id=f"{table['id']}: {row['name']}, {column['name']}",
        experiment=keys["experiment"],
        source=table["source"],
        sentence=", ".join(part["name"] for part in place if part["name"]),
        paper=row["paper"][index],
        unit=claim.unit if claim else keys["unit"],
        rule="info",
        of=of,
        statistic=claim.statistic if claim else keys.get("statistic", "difference" if less else "value"),
        not_testable=keys.get("not_testable", ""),
        minimum=claim.minimum if claim else None,
        by_construction=claim.by_construction if claim else keys.get("by_construction", False),
        row=row["name"],
        column=column["name"],
        takes=keys["takes"],
        claim=name,
        benchmark=row.get("benchmarks", {}).get(column["name"], {}),
        against=against,
        beyond=beyond,
    )


def _relation(keys: Part, parts: Iterable[Part], place: tuple[Part, Part], less: Sequence[Any]) -> Part:
    """Return the relation of a cell with the arguments of its table, its column and its row."""
    where = {name: value for part in parts for name, value in part.get("where", {}).items()}
    own = [system] if (system := _system(*place)) else []
    chosen = {key: keys[key] for key in ("at", "take") if key in keys}
    return {"relation": keys["relation"], "systems": [*own, *less], "where": where, **chosen}


def _system(row: Part, column: Part) -> str | dict[str, Any]:
    """Return the system of a cell: a name, or the members and parameters of its row and its column."""
    found = [part["system"] for part in (row, column) if "system" in part]
    names = [one for one in found if isinstance(one, str)]
    return names[0] if names else {key: value for one in found for key, value in one.items()}


def _other(
    name: str, place: tuple[Part, Part], rows: Sequence[Part], columns: Sequence[Part]
) -> tuple[int, tuple[Part, Part]]:
    """Return the cell in the column or the row of this name, with the index of its column."""
    row, column = place
    for other in columns:
        if other["name"] == name:
            return columns.index(other), (row, other)
    (other,) = (one for one in rows if one["name"] == name)
    return columns.index(column), (other, column)
