"""Late frames: those that were not predicted by their deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.base import STREAM, Untestable
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

EDGE_MS = 1e-6  # a prediction exactly at its deadline is in time, whatever the rounding


def with_lateness(tables: Tables, frames: pd.DataFrame, *, next_frame: bool) -> pd.DataFrame:
    """Return frames with `deadline_ms` and `late`.

    A late frame was skipped, has no latency, or was predicted after its deadline. The deadline is the latency goal of
    the application, or with `next_frame` the next frame where that is sooner or there is no goal.
    """
    goals = tables.frame("shares").groupby(STREAM)[["latency_goal_ms", "fps"]].max().reset_index()
    found = frames.merge(goals, on=STREAM, how="left")
    goal_ms = found["latency_goal_ms"].astype(float)
    found["deadline_ms"] = np.fmin(goal_ms, 1e3 / found["fps"]) if next_frame else goal_ms
    without = found[found["deadline_ms"].isna()]
    if len(without):
        first = without.iloc[0]
        raise Untestable(
            f"needs a deadline of every application, '{first['app']}' on '{first['device']}' has none: set its "
            "latency_goal_s"
        )
    in_time = found["processed"].eq(True) & (found["latency_ms"] <= found["deadline_ms"] + EDGE_MS)
    return found.drop(columns=goals.columns.difference(STREAM)).assign(late=~in_time)


def late_shares(tables: Tables) -> pd.Series:
    """Return the share of frames per cell whose prediction was not ready `grace_s` after they were shown."""
    frames = tables.frame("frames").merge(tables.frame("runs")[["cell", "grace_s"]].dropna(), on="cell")
    in_time = frames["processed"].eq(True) & (frames["latency_ms"] <= 1e3 * frames["grace_s"].astype(float) + EDGE_MS)
    return (~in_time).groupby(frames["cell"]).mean()


def right_in_time(tables: Tables) -> pd.Series:
    """Return the mean score of each cell if late frames score 0."""
    frames = with_lateness(tables, tables.frame("frames").dropna(subset=["score_frame"]), next_frame=False)
    return frames["score_frame"].mask(frames["late"], 0.0).groupby(frames["cell"]).mean()
