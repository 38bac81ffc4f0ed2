"""Rows that relations start from: the cells that ended, systems by what their slots hold, and pairs of systems.

A relation of claims is a function of the tables and of a claim's `systems` and `where`. It returns a frame with one row
per place and seed: a column `value`, or `ours` and `theirs`. A frame without rows means that the run lacks what is
compared. What the sentence beside a number says is the frame's `attrs["note"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from driftlab.datasets.catalogue import label_of
from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.results import stats
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.schema import TABLES
from driftlab.platform.results.tables.systems import Slot, recorded_slots, slots_of

if TYPE_CHECKING:
    import pandas as pd

Kinds = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # what systems have in their slots, or one of several
CELL = ["workload", "fleet", "seed"]
STREAM = ["cell", "device", "app"]
FRAME = [*CELL, "device", "app", "frame"]


class Untestable(Exception):
    """The tables of a run lack what a claim is judged by; the reason stands beside the claim."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def sides(ours: pd.Series, theirs: pd.Series, note: str = "") -> pd.DataFrame:
    """Put two measurements of the same places and seeds side by side."""
    import pandas as pd

    return with_note(pd.DataFrame({"ours": ours, "theirs": theirs}), note)


def single(value: pd.Series, note: str = "") -> pd.DataFrame:
    """Make rows of one measurement."""
    return with_note(value.to_frame("value"), note)


def no_rows(needs: str = "") -> pd.DataFrame:
    """Make rows of nothing, where a run lacks what is compared; a claim may say itself what it needs."""
    import pandas as pd

    rows = pd.DataFrame({"value": [], "ours": [], "theirs": []})
    rows.attrs["needs"] = needs
    return rows


def with_note(rows: pd.DataFrame, note: str) -> pd.DataFrame:
    """Give rows the sentence that stands beside their number."""
    rows.attrs["note"] = note
    return rows


def of_one_network(rows: pd.DataFrame, note: str) -> pd.DataFrame:
    """Mark a row that is the same under every seed, so that it has no interval."""
    rows.attrs["single"] = True
    return with_note(rows, note)


def completed_cells(tables: Tables) -> pd.DataFrame:
    """List the cells that came to their end; what a method would do over no link is no cell of that method."""
    return tables.once(_done)


def _done(tables: Tables) -> pd.DataFrame:
    runs = tables.frame("runs")
    return runs[(runs["status"] == "done") & (runs["bound"] != "zero_delay_link")]


def with_columns(tables: Tables, table: str, *columns: str) -> pd.DataFrame:
    """Read a table with columns of the cells that came to their end, by default the system and the seed."""
    return tables.frame(table).merge(completed_cells(tables)[["cell", *(columns or ("system", "seed"))]], on="cell")


def slot(tables: Tables, system: str, family: str) -> Slot:
    """Read the member that a system of this run has in a slot, with every parameter."""
    return slots(tables, [system])[system][family]


def slots(tables: Tables, systems: Iterable[str]) -> dict[str, dict[str, Slot]]:
    """Return the members of systems, from the run's table or else from its spec; unlisted systems are left out."""
    names = list(systems)
    rows = tables.frame("systems")
    rows = rows[rows["system"].isin(names)].drop_duplicates(["system", "family", "parameter"])
    known = recorded_slots(rows.to_dict("records"))
    known |= slots_of(tables.run.spec, [name for name in names if name not in known])
    return {name: known[name] for name in names if name in known}


def _slots_of_done(tables: Tables) -> dict[str, dict[str, Slot]]:
    return slots(tables, completed_cells(tables)["system"].unique())


def members(tables: Tables, family: str, *names: str) -> dict[str, Slot]:
    """Read the members that the systems of a run have in a slot, by system; of these names alone, if any are given."""
    found = tables.once(_slots_of_done)
    chosen = {system: of[family] for system, of in found.items()}
    return {system: one for system, one in chosen.items() if not names or one.name in names}


def learners(tables: Tables) -> dict[str, str]:
    """Map the systems that adapt their network to the member that does."""
    return {system: one.name for system, one in members(tables, "adaptation").items() if one.name != "frozen"}


def first_of(tables: Tables, system: str | Kinds) -> str:
    """Name the first system of the run that is of one of these kinds, or nothing; a name stays as it is."""
    return system if isinstance(system, str) else next(iter(of_kinds(tables, system)), "")


def of_kinds(tables: Tables, kinds: Kinds) -> list[str]:
    """Name the systems whose slots are as asked: `{"streaming": "ams", "streaming.interval_s": 10}`, or one of many."""
    wanted = [kinds] if isinstance(kinds, Mapping) else kinds
    found = tables.once(_slots_of_done)
    return [name for name, of in found.items() if any(all(_has(of, *each) for each in kind.items()) for kind in wanted)]


def _has(of: Mapping[str, Slot], key: str, value: Any) -> bool:
    family, dot, parameter = key.partition(".")
    return bool((of[family][parameter] if dot else of[family].name) == value)


def pairs(tables: Tables, ours: str, theirs: str, column: str = "score") -> pd.DataFrame:
    """List `ours` and `theirs` by place and seed, wherever both systems were measured."""
    rows = tables.once(_rows_with, column)
    places = [place for place in stats.PLACES if place in rows.columns]
    return stats.pairs(rows, ours, theirs, column_of(column)[1], [*places, "seed"], "system")


def _rows_with(tables: Tables, column: str) -> pd.DataFrame:
    """List the rows of the cells that ended with a column, their system, their place and their seed."""
    table, name = column_of(column)
    runs = tables.frame("runs")
    ended = runs[runs["status"] == "done"]
    if table == "runs":
        return ended
    own = ["cell", *(place for place in stats.PLACES if place in TABLES[table].names), name]
    return tables.frame(table)[own].merge(ended[["cell", "system", *CELL]], on="cell")


def column_of(asked: str) -> tuple[str, str]:
    """Find a column of numbers by its name, of table `runs` unless another one stands before the dot."""
    table, dot, name = asked.rpartition(".")
    table = table if dot else "runs"
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    numbers = [field.name for field in TABLES[table] if _is_number(field.type) and field.name != "seed"]
    if name not in TABLES[table].names:
        raise unknown_name(f"column of '{table}'", name, numbers)
    if name not in numbers:
        raise RequestError(f"Column {quoted(asked)} holds no numbers. Those of '{table}' are: {', '.join(numbers)}.")
    return table, name


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def labels_of(tables: Tables) -> dict[str, str]:
    """Map how the tables call a workload to its name in the catalogue."""
    parts: Iterable[dict[str, Any]] = tables.run.spec.get("workloads", ())
    names = {part.get("alias") or label_of(part["name"]): part["name"] for part in parts}
    return {**{part["name"]: part["name"] for part in parts}, **names}


def by_seed(values: Sequence[tuple[int, float]]) -> pd.Series:
    """Make a series of values from pairs of a seed and a value; there may be none."""
    import pandas as pd

    return pd.DataFrame(values, columns=["seed", "value"]).set_index("seed")["value"]
