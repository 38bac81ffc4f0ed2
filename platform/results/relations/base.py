"""Rows that relations start from: completed cells, systems by their members, and pairs of systems.

A relation of claims is a function of the tables and of a claim's `systems` and `where`. It returns a frame with one row
per place and seed: a column `value`, or `ours` and `theirs`. The frame is empty if the run lacks the data. Its
`attrs["note"]` is the note printed with the number.
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

Kinds = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # members and parameters of systems, or several such kinds
CELL = ["workload", "fleet", "seed"]
STREAM = ["cell", "device", "app"]
FRAME = [*CELL, "device", "app", "frame"]


class Untestable(Exception):
    """The tables of a run lack the data that a claim needs; the reason becomes the note of the verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def pair_rows(ours: pd.Series, theirs: pd.Series, note: str = "") -> pd.DataFrame:
    """Return rows with two measurements of the same places and seeds."""
    import pandas as pd

    return with_note(pd.DataFrame({"ours": ours, "theirs": theirs}), note)


def value_rows(value: pd.Series, note: str = "") -> pd.DataFrame:
    """Return rows with one measurement."""
    return with_note(value.to_frame("value"), note)


def no_rows(needs: str = "") -> pd.DataFrame:
    """Return an empty frame for a run that lacks the data; a claim's own `needs` has priority."""
    import pandas as pd

    rows = pd.DataFrame({"value": [], "ours": [], "theirs": []})
    rows.attrs["needs"] = needs
    return rows


def with_note(rows: pd.DataFrame, note: str) -> pd.DataFrame:
    """Set the note that is printed with the number of these rows."""
    rows.attrs["note"] = note
    return rows


def of_one_network(rows: pd.DataFrame, note: str) -> pd.DataFrame:
    """Mark a row that is equal under every seed and therefore has no interval."""
    rows.attrs["single"] = True
    return with_note(rows, note)


def completed_cells(tables: Tables) -> pd.DataFrame:
    """List the completed cells without the zero-delay bounds, which are no cells of their methods."""
    return tables.once(_done)


def _done(tables: Tables) -> pd.DataFrame:
    runs = tables.frame("runs")
    return runs[(runs["status"] == "done") & (runs["bound"] != "zero_delay_link")]


def with_columns(tables: Tables, table: str, *columns: str) -> pd.DataFrame:
    """Read a table joined with columns of its completed cells, by default the system and the seed."""
    return tables.frame(table).merge(completed_cells(tables)[["cell", *(columns or ("system", "seed"))]], on="cell")


def slot(tables: Tables, system: str, family: str) -> Slot:
    """Return the member of a system in one family, with every parameter."""
    return slots(tables, [system])[system][family]


def slots(tables: Tables, systems: Iterable[str]) -> dict[str, dict[str, Slot]]:
    """Return the members of systems, from the run's table or its spec; omit unlisted systems."""
    names = list(systems)
    rows = tables.frame("systems")
    rows = rows[rows["system"].isin(names)].drop_duplicates(["system", "family", "parameter"])
    by_system = recorded_slots(rows.to_dict("records"))
    by_system |= slots_of(tables.run.spec, [name for name in names if name not in by_system])
    return {name: by_system[name] for name in names if name in by_system}


def _slots_of_done(tables: Tables) -> dict[str, dict[str, Slot]]:
    return slots(tables, completed_cells(tables)["system"].unique())


def members(tables: Tables, family: str, *names: str) -> dict[str, Slot]:
    """Map systems to their member in one family, restricted to `names` if given."""
    found = tables.once(_slots_of_done)
    chosen = {system: of[family] for system, of in found.items()}
    return {system: one for system, one in chosen.items() if not names or one.name in names}


def learners(tables: Tables) -> dict[str, str]:
    """Map the systems that adapt their network to the name of their adaptation member."""
    return {system: one.name for system, one in members(tables, "adaptation").items() if one.name != "frozen"}


def first_of(tables: Tables, system: str | Kinds) -> str:
    """Return the first system of one of these kinds, or an empty text; a name is returned unchanged."""
    return system if isinstance(system, str) else next(iter(of_kinds(tables, system)), "")


def of_kinds(tables: Tables, kinds: Kinds) -> list[str]:
    """List the systems of some kinds, such as `{"streaming": "ams", "streaming.interval_s": 10}`."""
    listed = [kinds] if isinstance(kinds, Mapping) else kinds
    found = tables.once(_slots_of_done)
    return [name for name, of in found.items() if any(all(_has(of, *each) for each in kind.items()) for kind in listed)]


def _has(of: Mapping[str, Slot], key: str, value: Any) -> bool:
    family, dot, parameter = key.partition(".")
    return bool((of[family][parameter] if dot else of[family].name) == value)


def pairs(tables: Tables, ours: str, theirs: str, column: str) -> pd.DataFrame:
    """List `ours` and `theirs` by place and seed, wherever both systems were measured."""
    return stats.pair_of(tables.once(_means_of_systems, column), ours, theirs)


def _means_of_systems(tables: Tables, column: str) -> pd.Series:
    rows = tables.once(rows_with, column)
    places = [place for place in stats.PLACES if place in rows.columns]
    return stats.sides(rows, column_of(column)[1], [*places, "seed"], "system")


def rows_with(tables: Tables, column: str) -> pd.DataFrame:
    """List a column of the completed cells with system, place and seed; the bounds are included."""
    table, name = column_of(column)
    runs = tables.frame("runs")
    ended = runs[runs["status"] == "done"]
    if table == "runs":
        return ended
    own = ["cell", *(place for place in stats.PLACES if place in TABLES[table].names), name]
    return tables.frame(table)[own].merge(ended[["cell", "system", *CELL]], on="cell")


def column_of(path: str) -> tuple[str, str]:
    """Split `TABLE.COLUMN` into a table (by default `runs`) and a column of numbers of it."""
    table, dot, name = path.rpartition(".")
    table = table if dot else "runs"
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    numbers = [field.name for field in TABLES[table] if _is_number(field.type) and field.name != "seed"]
    if name not in TABLES[table].names:
        raise unknown_name(f"column of '{table}'", name, numbers)
    if name not in numbers:
        raise RequestError(f"Column {quoted(path)} holds no numbers. Those of '{table}' are: {', '.join(numbers)}.")
    return table, name


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def labels_of(tables: Tables) -> dict[str, str]:
    """Map the workloads' names in the tables to those in the catalogue."""
    parts: Iterable[dict[str, Any]] = tables.run.spec.get("workloads", ())
    names = {part.get("alias") or label_of(part["name"]): part["name"] for part in parts}
    return {**{part["name"]: part["name"] for part in parts}, **names}


def by_seed(values: Sequence[tuple[int, float]]) -> pd.Series:
    """Return a series by seed of pairs of a seed and a value; there may be none."""
    import pandas as pd

    return pd.DataFrame(values, columns=["seed", "value"]).set_index("seed")["value"]
