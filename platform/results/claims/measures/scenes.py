"""Measures of specialising once: while the scene stays, and after it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import CELL
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.relations.scenery import sceneries
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

STREAM = ["workload", "fleet", "seed", "device", "app", "time_s"]  # the same frame, whatever system runs
NEEDS = "needs 'one_time' and 'no_custom' on the same workload and seed, with truth"
UPDATED = ", and an update that arrived"


def gain_on_a_still_scene(tables: Tables) -> Measured | Untestable:
    """Compare whole sessions in which no stream ever changes its scene, nor the scene its light and weather."""
    pairs = _pairs(tables)
    if pairs.empty:
        return Untestable(NEEDS)
    pairs = pairs.merge(sceneries(tables, pairs["cell"])[["cell", "device", "drifts"]], on=["cell", "device"])
    pairs = pairs[~pairs["drifts"].eq(True)]
    still = pairs[pairs.groupby(CELL)["changes"].transform("max") == 0]
    if still.empty:
        return Untestable("every stream changes its scene")
    return over_seeds(still.groupby(CELL)["gain"].mean())


def gain_after_the_scene_changed(tables: Tables) -> Measured | Untestable:
    """Compare frames of scenes that began after the samples were taken, from the arrival of the update on."""
    gains = _gains_after_the_update(tables)
    if gains.empty:
        return Untestable(NEEDS + UPDATED)
    return over_seeds(gains[False].dropna()) if False in gains else Untestable("no new scene after the update")


def gain_lost_with_the_scene(tables: Tables) -> Measured | Untestable:
    """Subtract, cell by cell, the gain on scenes seen before the update from the gain on those seen only later."""
    gains = _gains_after_the_update(tables)
    if set(gains) != {True, False} or (both := gains.dropna()).empty:
        return Untestable("needs both known and new scenes after the update" if len(gains) else NEEDS + UPDATED)
    return over_seeds(both[False] - both[True])


def _pairs(tables: Tables) -> pd.DataFrame:
    """Join the frames of both systems: one row per frame with the gain and how often its stream changes scene."""
    runs = tables.frame("runs")
    named = tables.frame("frames").merge(runs[["cell", "system", *CELL]], on="cell").dropna(subset=["score_frame"])
    once, never = (named[named["system"] == system] for system in ("one_time", "no_custom"))
    pairs = once.merge(never[[*STREAM, "score_frame"]], on=STREAM, suffixes=("", "_never"))
    scenes = pairs.groupby([*CELL, "device", "app"])["scene"]
    return pairs.assign(gain=pairs["score_frame"] - pairs["score_frame_never"], changes=scenes.transform("nunique") - 1)


def _gains_after_the_update(tables: Tables) -> pd.DataFrame:
    """Average the gain of each cell over frames shown with the update: by whether sampling had seen their scene."""
    pairs, updates = _pairs(tables), tables.frame("updates")
    first = updates[updates["version"] == 1][["cell", "device", "teach_start_s"]].dropna()
    known = pairs.merge(first, on=["cell", "device"])
    began_s = known.groupby([*STREAM[:-1], "scene"])["time_s"].transform("min")
    known = known.assign(familiar=began_s < known["teach_start_s"])[known["version"] > 0]
    return known.groupby([*CELL, "familiar"])["gain"].mean().unstack("familiar")
