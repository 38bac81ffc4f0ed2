"""Claims about specialising once: it pays while the scene stays, and what it learned expires with the scene."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.datasets.streets.presets import PRESETS
from driftlab.platform.results.analysis.cells import CELL, labels_of
from driftlab.platform.results.analysis.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.claims.base import DIFFERENCE, Claim
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

STREAM = ["workload", "fleet", "seed", "device", "app", "time_s"]  # the same frame, whatever system runs
NEEDS = "needs 'one_time' and 'no_custom' on the same workload and seed, with truth"


def gain_on_a_still_scene(tables: Tables) -> Measured | Untestable:
    """Compare whole sessions in which no stream ever changes its scene, nor the scene its light and weather."""
    pairs = _pairs(tables)
    if pairs.empty:
        return Untestable(NEEDS)
    drifting = {f"streets/{name}" for name, preset in PRESETS.items() if preset.drift_s}
    pairs = pairs[~pairs["workload"].map(labels_of(tables)).isin(drifting)]
    still = pairs[pairs.groupby(CELL)["changes"].transform("max") == 0]
    if still.empty:
        return Untestable("every stream changes its scene")
    return _over_seeds(still.groupby(CELL)["gain"].mean())


def gain_after_the_scene_changed(tables: Tables) -> Measured | Untestable:
    """Compare frames of scenes that began after the samples were taken, from the arrival of the update on."""
    pairs = _after_the_update(_pairs(tables), tables.frame("updates"))
    if pairs.empty:
        return Untestable(NEEDS + ", and an update that arrived")
    strange = pairs[~pairs["familiar"]]
    return (
        Untestable("no new scene after the update")
        if strange.empty
        else _over_seeds(strange.groupby(CELL)["gain"].mean())
    )


def gain_lost_with_the_scene(tables: Tables) -> Measured | Untestable:
    """Subtract, cell by cell, the gain on scenes seen before the update from the gain on those seen only later."""
    pairs = _after_the_update(_pairs(tables), tables.frame("updates"))
    if pairs.empty:
        return Untestable(NEEDS + ", and an update that arrived")
    gains = pairs.groupby([*CELL, "familiar"])["gain"].mean().unstack("familiar")
    if set(gains.columns) != {True, False} or (both := gains.dropna()).empty:
        return Untestable("needs both known and new scenes after the update")
    return _over_seeds(both[False] - both[True])


def _pairs(tables: Tables) -> pd.DataFrame:
    """Join the frames of both systems: one row per frame with the gain and how often its stream changes scene."""
    runs = tables.frame("runs")
    named = tables.frame("frames").merge(runs[["cell", "system", *CELL]], on="cell").dropna(subset=["score_frame"])
    once, never = (named[named["system"] == system] for system in ("one_time", "no_custom"))
    pairs = once.merge(never[[*STREAM, "score_frame"]], on=STREAM, suffixes=("", "_never"))
    scenes = pairs.groupby([*CELL, "device", "app"])["scene"]
    return pairs.assign(gain=pairs["score_frame"] - pairs["score_frame_never"], changes=scenes.transform("nunique") - 1)


def _after_the_update(pairs: pd.DataFrame, updates: pd.DataFrame) -> pd.DataFrame:
    """Keep frames shown with the update, and say of each whether its scene had been on when sampling ended."""
    first = updates[updates["version"] == 1][["cell", "device", "teach_start_s"]].dropna()
    known = pairs.merge(first, on=["cell", "device"])
    began_s = known.groupby([*STREAM[:-1], "scene"])["time_s"].transform("min")
    known = known.assign(familiar=began_s < known["teach_start_s"])
    return known[known["version"] > 0]


def _over_seeds(cells: pd.Series) -> Measured | Untestable:
    return over_seeds(cells.rename("value").reset_index())


CLAIMS = (
    Claim(
        id="ONCE-1",
        experiment="ams-table1",
        source="AMS, Table 2: Interview, 71.91 to 87.40 %",
        sentence="specialising once helps where the scene does not change",
        paper=0.1549,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_on_a_still_scene,
    ),
    Claim(
        id="ONCE-2",
        experiment="ams-table1",
        source="AMS, Table 1: A2D2, 62.05 to 50.78 %",
        sentence="specialising once hurts on scenes that were not in its samples",
        paper=-0.1127,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_after_the_scene_changed,
    ),
    Claim(
        id="ONCE-3",
        experiment="ams-table1",
        source="driftlab: what ONCE-1 and ONCE-2 say together",
        sentence="what specialising once gains is smaller on new scenes than on known ones",
        paper=0.0,
        unit=DIFFERENCE,
        rule="le",
        measure=gain_lost_with_the_scene,
    ),
)
