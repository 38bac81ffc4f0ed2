"""Compare the predicted with the measured latency of networks under load.

The member's predictor is compared with predictors that do not learn operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.base import (
    CELL,
    STREAM,
    completed_cells,
    no_rows,
    pair_rows,
)
from driftlab.platform.results.relations.paths import by_setting
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.world.load import speed_of

if TYPE_CHECKING:
    import pandas as pd

MEMBER, THEORY, CONSTANT, LOOK_UP = "member", "theoretical model", "constant", "look-up"
PREDICTORS = (MEMBER, THEORY, CONSTANT, LOOK_UP)
OTHER_NETWORK = 1.0  # distance of a measurement of another network, in shares of the CPU
NEEDS = "needs a load with 'law: operators'"


def errors(tables: Tables) -> pd.DataFrame:
    """List the relative error of each prediction, by the member and by three other predictors.

    All predictors have the same measurements. The theoretical model is the paper's: the share of the CPU and the clock
    slow all networks alike. The constant is the mean slowdown so far. The look-up returns the slowdown of the most
    similar measurement so far. Columns: those of `predictions`, those of a cell, and one for each predictor.
    """
    import pandas as pd

    rows = tables.frame("predictions").merge(completed_cells(tables)[["cell", "system", *CELL]], on="cell")
    found = [_replayed(own.sort_values("time_s")) for _, own in rows.groupby(STREAM)]
    return pd.concat(found) if found else rows.assign(**dict.fromkeys(PREDICTORS, 0.0))


def _replayed(rows: pd.DataFrame) -> pd.DataFrame:
    taken = (rows["taken_ms"] / rows["idle_ms"]).to_numpy()
    theory = np.array([1 / max(speed_of(*one), 1e-9) for one in zip(rows["cpu"], rows["clock"], strict=True)])
    networks, loads = rows["network"].to_numpy(), rows[["cpu", "memory"]].to_numpy()
    constant, look_up = theory.copy(), theory.copy()
    for k in range(1, len(rows)):
        constant[k] = taken[:k].mean()
        distance = np.abs(loads[:k] - loads[k]).sum(axis=1) + OTHER_NETWORK * (networks[:k] != networks[k])
        look_up[k] = taken[k - 1 - int(distance[::-1].argmin())]  # of equals the newest
    member = (rows["predicted_ms"] / rows["idle_ms"]).to_numpy()
    predicted = dict(zip(PREDICTORS, (member, theory, constant, look_up), strict=True))
    return rows.assign(**{name: np.abs(one / taken - 1) for name, one in predicted.items()})


def error_of_halves(tables: Tables, predictor: str) -> pd.DataFrame:
    """List the mean relative error of adascale's predictor in each half of the sessions.

    The first half comes first.
    """
    rows = _of(tables, predictor)
    if rows.empty:
        return no_rows(NEEDS)
    late = rows["time_s"] > rows.groupby("cell")["time_s"].transform("max") / 2
    sides = [own.groupby(CELL)[MEMBER].mean() for own in (rows[~late], rows[late])]
    return pair_rows(*sides)


def error_against(tables: Tables, predictor: str, other: str) -> pd.DataFrame:
    """List the mean relative error of another predictor and of adascale's, over sessions."""
    rows = _of(tables, predictor)
    if rows.empty:
        return no_rows(NEEDS)
    return pair_rows(*(rows.groupby(CELL)[name].mean() for name in (other, MEMBER)))


def _of(tables: Tables, predictor: str) -> pd.DataFrame:
    """Return the errors of the first system of adascale with a predictor."""
    rows = tables.once(errors)
    return rows[rows["system"] == by_setting(tables, "predictor").get(predictor)]
