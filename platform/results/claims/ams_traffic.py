"""Claims about what a kilobit buys: those of AMS's Figure 4, and our own about smaller updates; read from `ams-fig4`.

Which system is which follows from its slots, so that an experiment of one's own answers as well.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.analysis.cells import CELL, difference, done, side_by_side, slot, table_of
from driftlab.platform.results.analysis.measured import Measured, Untestable, over_seeds, ratio_over_seeds
from driftlab.platform.results.claims.base import DIFFERENCE, Claim
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot
from driftlab.platform.wire.value_codecs import bytes_of

if TYPE_CHECKING:
    import pandas as pd

USUAL = ("fp16", 120.0)  # values and horizon_s of AMS

# Figure 4: score over traffic -----------------------------------------------------------------------------------------


def downlink_at_equal_score(tables: Tables) -> Measured | Untestable:
    """Divide the downlink of Just-In-Time, at the threshold where it scores as AMS does, by that of AMS."""
    return _at_equal_score(tables, "downlink_kbps")


def uplink_at_equal_score(tables: Tables) -> Measured | Untestable:
    """Do the same for the uplink."""
    return _at_equal_score(tables, "uplink_kbps")


def _at_equal_score(tables: Tables, column: str) -> Measured | Untestable:
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
        rows.append({"seed": cell["seed"], "value": equal / cell[column]})
        streets[cell["workload"]].append(equal / cell[column])
    note = ", ".join(f"{name} {np.exp(np.mean(np.log(ratios))):.2g}" for name, ratios in streets.items())
    note += f"; at least: in {above} of {len(rows)} cells no threshold reached the score of AMS" if above else ""
    return ratio_over_seeds(table_of(rows), note)


def flatter_than_just_in_time(tables: Tables) -> Measured | Untestable:
    """Tell by how much steeper than that of AMS the score of Just-In-Time falls with the logarithm of its downlink."""
    steady = _intervals(tables)
    rivals = _just_in_time(tables, dense=False)
    if len(steady) < 3 or len(rivals) < 3:
        return Untestable("needs AMS with three intervals and Just-In-Time with three thresholds or more")
    runs = done(tables).dropna(subset=["score"])
    rows = []
    for (_, _, seed), cells in runs.groupby(CELL):
        slopes = [_slope(cells[cells["system"].isin(names)]) for names in (rivals, steady)]
        rows.append({"seed": seed, "value": slopes[0] - slopes[1]})
    return over_seeds(table_of(rows), "per e-fold of downlink")


def dense_just_in_time(tables: Tables) -> Measured | Untestable:
    """Divide the downlink of Just-In-Time that sends every weight by that of the one that sends a part."""
    sparse, dense = _just_in_time(tables, dense=False), _just_in_time(tables, dense=True)
    pairs = [(a, b) for a, limit in dense.items() for b, other in sparse.items() if limit == other]
    if not pairs:
        return Untestable("needs Just-In-Time with a part of the weights and with all, at one threshold")
    both = side_by_side(tables, *pairs[0], "downlink_kbps")
    against = side_by_side(tables, pairs[0][0], "ams", "downlink_kbps")
    note = "" if against.empty else f"{(against['ours'] / against['theirs']).mean():.3g} times that of ams"
    return ratio_over_seeds(both.assign(value=both["ours"] / both["theirs"]), note)


def usual_threshold(tables: Tables) -> Measured | Untestable:
    """Compare Just-In-Time at its usual threshold with AMS."""
    traffic = side_by_side(tables, "just_in_time", "ams", "downlink_kbps")
    found = difference(tables, "just_in_time", "ams")
    if isinstance(found, Untestable):
        return found
    ratio = (traffic["ours"] / traffic["theirs"]).mean()
    return Measured(found.value, found.low, found.high, found.n, f"at {ratio:.3g} times the downlink")


def _just_in_time(tables: Tables, *, dense: bool) -> dict[str, float]:
    """Name the Just-In-Time systems of a run that send a part of the weights, or all, with their thresholds."""
    members = {name: _members(tables, name) for name in done(tables)["system"].unique()}
    return {
        name: streaming["threshold"]
        for name, (streaming, adaptation) in members.items()
        if streaming.name == "just_in_time" and (adaptation["fraction"] == 1) == dense
    }


def _intervals(tables: Tables) -> list[str]:
    """Name the AMS systems of a run with the usual values and horizon, whatever their interval."""
    members = {name: _members(tables, name) for name in done(tables)["system"].unique()}
    return [
        name
        for name, (streaming, _) in members.items()
        if streaming.name == "ams" and (streaming["values"], streaming["horizon_s"]) == USUAL
    ]


def _members(tables: Tables, name: str) -> tuple[Slot, Slot]:
    return slot(tables, name, "streaming"), slot(tables, name, "adaptation")


def _slope(cells: pd.DataFrame) -> float:
    """Fit a line to the score over the logarithm of the downlink, where there was any."""
    used = cells[(cells["downlink_kbps"] > 0) & cells["score"].notna()]
    if used["downlink_kbps"].nunique() < 2:
        return float("nan")
    return float(np.polyfit(np.log(used["downlink_kbps"]), used["score"], 1)[0])


# Beyond the paper: smaller updates ------------------------------------------------------------------------------------


def quantised_downlink(tables: Tables) -> Measured | Untestable:
    """Divide the downlink of four-bit updates by that of the paper's."""
    name = _quantised(tables)
    if name is None:
        return Untestable("needs 'ams' and AMS with values: int4")
    both = side_by_side(tables, name, "ams", "downlink_kbps")
    return ratio_over_seeds(both.assign(value=both["ours"] / both["theirs"]), _with_eight_bits(tables, name))


def quantised_score(tables: Tables) -> Measured | Untestable:
    """Tell how far the scores may differ: the end of the interval that is further from 0 is what has to be small."""
    name = _quantised(tables)
    if name is None:
        return Untestable("needs 'ams' and AMS with values: int4")
    found = difference(tables, name, "ams")
    if isinstance(found, Untestable) or found.low is None or found.high is None:
        return found
    note = f"{found.value:+.4f}, from {found.low:+.4f} to {found.high:+.4f}".replace("-", "\u2212")
    return Measured(abs(found.value), 0.0, max(abs(found.low), abs(found.high)), found.n, note)


def _with_eight_bits(tables: Tables, name: str) -> str:
    """Say how large the same updates would be with eight bits a value: the mask, which no codec shortens, stays."""
    updates = tables.frame("updates").merge(done(tables)[["cell", "system"]], on="cell")
    usual, small = (updates[(updates["system"] == system) & (updates["values"] > 0)] for system in ("ams", name))
    if usual.empty or small.empty:
        return ""
    more = small["values"].map(lambda count: bytes_of("int8", count) - bytes_of("int4", count))
    ratio = (small["bytes"] + more).mean() / usual["bytes"].mean()
    return f"eight bits a value would make it {ratio:.2f} times, because the mask stays"


def _quantised(tables: Tables) -> str | None:
    names = list(done(tables)["system"].unique())
    fours = [name for name in names if slot(tables, name, "streaming")["values"] == "int4"]
    return fours[0] if fours and "ams" in names else None


CLAIMS = (
    Claim(
        id="AMS-5",
        experiment="ams-fig4",
        source="AMS, Section 4.2: 4.4 to 44.5 times, 15.7 on average",
        sentence="Just-In-Time needs more downlink for the same score",
        paper=1.0,
        unit="times",
        rule="ge",
        measure=downlink_at_equal_score,
    ),
    Claim(
        id="AMS-6",
        experiment="ams-fig4",
        source="AMS, Section 4.2: 5.2 to 37.1 times, 16.8 on average",
        sentence="Just-In-Time needs more uplink for the same score",
        paper=1.0,
        unit="times",
        rule="ge",
        measure=uplink_at_equal_score,
    ),
    Claim(
        id="AMS-12",
        experiment="ams-fig4",
        source="AMS, Figure 4",
        sentence="with less downlink AMS loses less score than Just-In-Time",
        paper=0.0,
        unit=DIFFERENCE,
        rule="ge",
        measure=flatter_than_just_in_time,
    ),
    Claim(
        id="AMS-13",
        experiment="ams-fig4",
        source="AMS, Section 4.2: 150 times the downlink of AMS",
        sentence="Just-In-Time needs far more downlink without choosing weights",
        paper=5.0,
        unit="times",
        rule="ge",
        measure=dense_just_in_time,
    ),
    Claim(
        id="AMS-20",
        experiment="ams-fig4",
        source="AMS, Section 4.2: at its usual threshold +1.0 points for 3.3 times the bandwidth",
        sentence="Just-In-Time at its usual threshold against AMS",
        paper=0.01,
        unit=DIFFERENCE,
        rule="info",
        measure=usual_threshold,
    ),
    Claim(
        id="DELTA-1",
        experiment="ams-fig4",
        source="driftlab: four-bit values, Rice-coded masks and error feedback",
        sentence="quantised updates halve the downlink of AMS",
        paper=0.5,
        unit="times",
        rule="le",
        measure=quantised_downlink,
    ),
    Claim(
        id="DELTA-2",
        experiment="ams-fig4",
        source="driftlab: four-bit values, Rice-coded masks and error feedback",
        sentence="quantised updates score within 0.3 points of the paper's",
        paper=0.003,
        unit="mIoU",
        rule="le",
        measure=quantised_score,
    ),
)
