"""Traffic of pairs of systems: at equal score, per sent weight, and slopes of the score over traffic.

Systems are found by their members, so that custom experiments can be judged too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import (
    CELL,
    Kinds,
    Untestable,
    by_seed,
    completed_cells,
    first_of,
    members,
    no_rows,
    of_kinds,
    pair_rows,
    pairs,
    slot,
    value_rows,
    with_columns,
    with_note,
)
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot
from driftlab.platform.streaming.wire.values import bytes_of

if TYPE_CHECKING:
    import pandas as pd

DOWN = "downlink_kbps"
USUAL = {"streaming": "ams", "streaming.value_format": "fp16", "streaming.horizon_s": 120.0}


def sweeps(tables: Tables, systems: Iterable[str]) -> list[dict[str, float]]:
    """Group systems that differ in one numeric streaming parameter (booleans aside), with its values.

    A group maps systems to values. Bounds are left out; a system that differs in two parameters is alone, with NaN.
    """
    streaming, adaptations = (members(tables, family) for family in ("streaming", "adaptation"))
    bounds = set(completed_cells(tables).dropna(subset=["bound"])["system"])
    groups: defaultdict[tuple[Slot, Slot], dict[str, dict[str, float]]] = defaultdict(dict)
    for name in systems:
        if name in streaming and name not in bounds:
            numbers = {key: value for key, value in streaming[name].params if isinstance(value, int | float)}
            groups[streaming[name].without(*numbers), adaptations[name]][name] = numbers
    found = list[dict[str, float]]()
    for group in groups.values():
        columns = {key: [each[key] for each in group.values()] for key in next(iter(group.values()))}
        varied = [each for each in columns.values() if len(set(each)) > 1 and not isinstance(each[0], bool)]
        values = varied[0] if len(varied) == 1 else []
        found += [dict(zip(group, values, strict=True))] if values else [{name: math.nan} for name in group]
    return found


def traffic_at_equal_score(tables: Tables, column: str) -> pd.DataFrame:
    """List the traffic of Just-In-Time relative to AMS, interpolated to the score of AMS."""
    names = _just_in_time(tables, dense=False)
    runs = completed_cells(tables).dropna(subset=["score"])
    ams = runs[runs["system"] == "ams"]
    if len(names) < 3 or ams.empty:
        return no_rows()
    rows, above = [], 0
    streets: defaultdict[str, list[float]] = defaultdict(list)
    for _, cell in ams.iterrows():
        others = runs[(runs[CELL] == cell[CELL]).all(axis=1) & runs["system"].isin(names)].sort_values("score")
        others = others[others[column] > 0]
        if others.empty or not cell[column] > 0:  # a link without traffic has no factor
            continue
        if cell["score"] < others["score"].iloc[0]:
            raise Untestable(
                f"the lowest threshold of Just-In-Time still scores higher than AMS on {cell['workload']}, seed "
                f"{cell['seed']}; add lower ones"
            )
        above += cell["score"] > others["score"].iloc[-1]
        factor = np.exp(np.interp(cell["score"], others["score"], np.log(others[column]))) / cell[column]
        rows.append((cell["seed"], factor))
        streets[cell["workload"]].append(factor)
    note = ", ".join(f"{name} {np.exp(np.mean(np.log(factors))):.2g}" for name, factors in streets.items())
    note += f"; at least: in {above} of {len(rows)} cells no threshold reached the score of AMS" if above else ""
    return value_rows(by_seed(rows), note)


def slopes(tables: Tables) -> pd.DataFrame:
    """List the slopes of the scores of Just-In-Time and of AMS over the logarithm of their downlink."""
    kinds = (_just_in_time(tables, dense=False), of_kinds(tables, USUAL))
    if any(len(names) < 3 for names in kinds):
        return no_rows()
    found = []
    for (_, _, seed), cells in completed_cells(tables).dropna(subset=["score"]).groupby(CELL):
        used = [cells[cells["system"].isin(names) & (cells[DOWN] > 0)] for names in kinds]
        found.append((seed, *(stats.slope(np.log(own[DOWN]), own["score"]) for own in used)))
    both = [by_seed([(row[0], row[side]) for row in found]) for side in (1, 2)]
    return pair_rows(both[0], both[1], "per e-fold of downlink")


def dense_downlinks(tables: Tables) -> pd.DataFrame:
    """List the downlink of Just-In-Time with all weights and with a part of them."""
    sparse, dense = _just_in_time(tables, dense=False), _just_in_time(tables, dense=True)
    alike = [(a, b) for a, limit in dense.items() for b, other in sparse.items() if limit == other]
    if not alike:
        return no_rows()
    against = pairs(tables, alike[0][0], "ams", DOWN)
    note = "" if against.empty else f"{(against['ours'] / against['theirs']).mean():.3g} times that of ams"
    return with_note(pairs(tables, alike[0][0], alike[0][1], DOWN), note)


def downlinks(tables: Tables, ours: Kinds, theirs: str) -> pd.DataFrame:
    """List the downlink of two systems; the note has the ratio with eight bits instead of four."""
    name = first_of(tables, ours)
    if not name or theirs not in set(completed_cells(tables)["system"]):
        return no_rows()
    return with_note(pairs(tables, name, theirs, DOWN), _with_eight_bits(tables, name, theirs))


def _just_in_time(tables: Tables, *, dense: bool) -> dict[str, float]:
    """Map the Just-In-Time systems that send all weights (`dense`) or a part to their thresholds."""
    return {
        name: streaming["threshold"]
        for name, streaming in members(tables, "streaming", "just_in_time").items()
        if (slot(tables, name, "adaptation")["fraction"] == 1) == dense
    }


def _with_eight_bits(tables: Tables, name: str, usual: str) -> str:
    """Return a note with the size ratio of the same updates at eight bits per value and equal masks."""
    updates = with_columns(tables, "updates", "system")
    plain, small = (updates[(updates["system"] == system) & (updates["values"] > 0)] for system in (usual, name))
    if plain.empty or small.empty:
        return ""
    more = small["values"].map(lambda count: bytes_of("int8", count) - bytes_of("int4", count))
    ratio = (small["bytes"] + more).mean() / plain["bytes"].mean()
    return f"with eight bits per value it would be {ratio:.2f} times, as the mask has the same size"
