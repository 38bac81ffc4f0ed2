"""Pareto fronts of systems, and the time that a stream takes to recover after a scene change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.base import STREAM
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd


def pareto(points: pd.DataFrame, gain: str, cost: str) -> pd.DataFrame:
    """Return the Pareto front: the points that no other point dominates in gain and cost.

    The front is sorted by cost; points that lack a number are no part of it.
    """
    measured = points.dropna(subset=[gain, cost]).sort_values([cost, gain], ascending=[True, False], kind="stable")
    best = measured[gain].cummax()
    first = measured[gain] == best
    cheapest = measured.groupby(best)[cost].transform("min") == measured[cost]
    return measured[first & cheapest]


def recoveries(tables: Tables, tolerance: float = 0.02) -> pd.DataFrame:
    """List every scene change of every stream, and the time until the live score has recovered.

    `before` is the live score of the last frame of the old scene; `lost` is its largest fall below that;
    `recover_s` is the time until the score, after its lowest point, is within the tolerance of `before`; NaN if the
    scene changes again or the session ends first.
    """
    import pandas as pd

    frames = tables.frame("frames").dropna(subset=[LIVE_SCORE])
    columns = ["change_s", "before", "lost", "recover_s"]
    found = []
    for key, rows in frames.sort_values([*STREAM, "time_s"]).groupby(STREAM, sort=False):
        time_s, scores = (rows[name].to_numpy(float) for name in ("time_s", LIVE_SCORE))
        changes = np.flatnonzero(np.diff(rows["scene"].to_numpy())) + 1
        for begin, end in zip(changes, np.append(changes, len(rows))[1:], strict=True):
            found.append((*key, *_recovery(time_s[begin:end], scores[begin:end], scores[begin - 1], tolerance)))
    table = pd.DataFrame(found, columns=[*STREAM, *columns]).astype(dict.fromkeys(columns, float))
    identity = tables.frame("runs")[["cell", "system", "workload", "fleet", "seed"]]
    return table.merge(identity, on="cell")


def _recovery(
    time_s: np.ndarray, scores: np.ndarray, before: float, tolerance: float
) -> tuple[float, float, float, float]:
    lowest = int(np.argmin(scores))
    back = np.flatnonzero(scores[lowest:] >= before - tolerance)
    recover_s = time_s[lowest + back[0]] - time_s[0] if len(back) else float("nan")
    return float(time_s[0]), before, before - float(scores[lowest]), float(recover_s)
