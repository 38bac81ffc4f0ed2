"""Measures of what a kilobit buys: those of AMS's Figure 4, and our own about smaller updates.

Which system is which follows from its slots, so that an experiment of one's own answers as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.cells import (
    CELL,
    by_seed,
    difference,
    done,
    first_of,
    members,
    of_kinds,
    ratios,
    slot,
)
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds, ratio_over_seeds
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.streaming.wire.values import bytes_of

if TYPE_CHECKING:
    import pandas as pd

DOWN = "downlink_kbps"
USUAL = {"streaming": "ams", "streaming.values": "fp16", "streaming.horizon_s": 120.0}


def traffic_at_equal_score(tables: Tables, column: str) -> Measured | Untestable:
    """Divide the traffic of Just-In-Time, at the threshold where it scores as AMS does, by that of AMS."""
    names = _just_in_time(tables, dense=False)
    runs = done(tables).dropna(subset=["score"])
    ams = runs[runs["system"] == "ams"]
    if len(names) < 3 or ams.empty:
        return Untestable("needs 'ams' and Just-In-Time with three thresholds or more")
    rows, above = [], 0
    streets: defaultdict[str, list[float]] = defaultdict(list)
    for _, cell in ams.iterrows():
        rivals = runs[(runs[CELL] == cell[CELL]).all(axis=1) & runs["system"].isin(names)].sort_values("score")
        rivals = rivals[rivals[column] > 0]
        if rivals.empty or not cell[column] > 0:  # a link without traffic has no factor
            continue
        if cell["score"] < rivals["score"].iloc[0]:
            return Untestable(
                f"the lowest threshold of Just-In-Time still scores higher than AMS on {cell['workload']}, seed "
                f"{cell['seed']}; add lower ones"
            )
        above += cell["score"] > rivals["score"].iloc[-1]
        equal = np.exp(np.interp(cell["score"], rivals["score"], np.log(rivals[column])))
        rows.append((cell["seed"], equal / cell[column]))
        streets[cell["workload"]].append(equal / cell[column])
    note = ", ".join(f"{name} {np.exp(np.mean(np.log(ratios))):.2g}" for name, ratios in streets.items())
    note += f"; at least: in {above} of {len(rows)} cells no threshold reached the score of AMS" if above else ""
    return ratio_over_seeds(by_seed(rows), note)


def flatter_than_just_in_time(tables: Tables) -> Measured | Untestable:
    """Tell by how much steeper than that of AMS the score of Just-In-Time falls with the logarithm of its downlink."""
    steady = of_kinds(tables, USUAL)
    rivals = _just_in_time(tables, dense=False)
    if len(steady) < 3 or len(rivals) < 3:
        return Untestable("needs AMS with three intervals and Just-In-Time with three thresholds or more")
    runs = done(tables).dropna(subset=["score"])
    rows = []
    for (_, _, seed), cells in runs.groupby(CELL):
        slopes = [_slope(cells[cells["system"].isin(names)]) for names in (rivals, steady)]
        rows.append((seed, slopes[0] - slopes[1]))
    return over_seeds(by_seed(rows), "per e-fold of downlink")


def dense_just_in_time(tables: Tables) -> Measured | Untestable:
    """Divide the downlink of Just-In-Time that sends every weight by that of the one that sends a part."""
    sparse, dense = _just_in_time(tables, dense=False), _just_in_time(tables, dense=True)
    pairs = [(a, b) for a, limit in dense.items() for b, other in sparse.items() if limit == other]
    if not pairs:
        return Untestable("needs Just-In-Time with a part of the weights and with all, at one threshold")
    against = ratios(tables, pairs[0][0], "ams", DOWN)
    note = "" if against.empty else f"{against.mean():.3g} times that of ams"
    return ratio_over_seeds(ratios(tables, *pairs[0], DOWN), note)


def difference_and_traffic(tables: Tables, ours: str, theirs: str) -> Measured | Untestable:
    """Compare scores, and tell the ratio of the traffic beside them."""
    found = difference(tables, ours, theirs)
    if isinstance(found, Untestable):
        return found
    return replace(found, note=f"at {ratios(tables, ours, theirs, DOWN).mean():.3g} times the downlink")


def _just_in_time(tables: Tables, *, dense: bool) -> dict[str, float]:
    """Name the Just-In-Time systems of a run that send a part of the weights, or all, with their thresholds."""
    return {
        name: streaming["threshold"]
        for name, streaming in members(tables, "streaming", "just_in_time").items()
        if (slot(tables, name, "adaptation")["fraction"] == 1) == dense
    }


def _slope(cells: pd.DataFrame) -> float:
    """Fit a line to the score over the logarithm of the downlink, where there was any."""
    used = cells[(cells[DOWN] > 0) & cells["score"].notna()]
    return float(np.polyfit(np.log(used[DOWN]), used["score"], 1)[0]) if used[DOWN].nunique() > 1 else float("nan")


def quantised_downlink(tables: Tables, mask: str) -> Measured | Untestable:
    """Divide the downlink of four-bit updates by that of the paper's."""
    name = _quantised(tables, mask)
    if not name:
        return Untestable(f"needs 'ams' and AMS with values: int4, mask: {mask}")
    return ratio_over_seeds(ratios(tables, name, "ams", DOWN), _with_eight_bits(tables, name))


def quantised_score(tables: Tables, mask: str) -> Measured | Untestable:
    """Tell how far the scores may differ: the end of the interval that is further from 0 is what has to be small."""
    name = _quantised(tables, mask)
    if not name:
        return Untestable(f"needs 'ams' and AMS with values: int4, mask: {mask}")
    found = difference(tables, name, "ams")
    if isinstance(found, Untestable) or found.low is None or found.high is None:
        return found
    note = f"{found.value:+.4f}, from {found.low:+.4f} to {found.high:+.4f}".replace("-", "\u2212")
    seeds = {seed: math.copysign(value, value * found.value) for seed, value in (found.by_seed or {}).items()}
    return Measured(abs(found.value), 0.0, max(abs(found.low), abs(found.high)), found.n, note, seeds)


def quantised_loss(tables: Tables, mask: str) -> Measured | Untestable:
    """Tell how much four-bit updates lose against the paper's; below 0 they gain."""
    name = _quantised(tables, mask)
    return difference(tables, "ams", name) if name else Untestable(f"needs 'ams' and AMS with mask: {mask}")


def _with_eight_bits(tables: Tables, name: str) -> str:
    """Say how large the same updates would be with eight bits a value: the mask, which no codec shortens, stays."""
    updates = tables.frame("updates").merge(done(tables)[["cell", "system"]], on="cell")
    usual, small = (updates[(updates["system"] == system) & (updates["values"] > 0)] for system in ("ams", name))
    if usual.empty or small.empty:
        return ""
    more = small["values"].map(lambda count: bytes_of("int8", count) - bytes_of("int4", count))
    ratio = (small["bytes"] + more).mean() / usual["bytes"].mean()
    return f"eight bits a value would make it {ratio:.2f} times, because the mask stays"


def _quantised(tables: Tables, mask: str) -> str:
    """Name the first system with four-bit values and this mask; nothing without one, or without AMS beside it."""
    wanted = {"streaming.values": "int4", "streaming.mask": mask}
    return first_of(tables, wanted) if "ams" in set(done(tables)["system"]) else ""
