"""Measures of how many devices share a GPU before waiting costs a point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import by_seed, losses, members
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

LOSS = 0.01  # a device is served as long as waiting costs it less than this
MORE = 10  # devices, one more than the paper's GPU serves
SHARING = "in fleets of several sizes, one of them with a GPU for each device"


def devices_gained(tables: Tables) -> Measured | Untestable:
    """Tell how many more devices a GPU serves when training intervals are adaptive, seed by seed."""
    names = [_first(tables, slowdown=slowdown, patient=False) for slowdown in (True, False)]
    adaptive, steady = (_losses(tables, name, name) for name in names)
    if adaptive.empty or steady.empty:
        return Untestable(f"needs AMS with and without slowdown {SHARING}")
    if adaptive["loss"].tolist() == steady["loss"].tolist():
        return Untestable("the intervals never adapted, both sides lost the same; streams must hold still")
    served, without = _served(adaptive), _served(steady)
    note = f"{served.mean():.3g} with, {without.mean():.3g} without; tried up to {adaptive['devices'].max()}"
    return over_seeds(served - without, note)


def devices_served(tables: Tables) -> Measured | Untestable:
    """Tell how many devices a GPU serves that make room for one another, seed by seed."""
    lost, _ = _patient_and_not(tables)
    if lost.empty:
        return Untestable(f"needs AMS with and without patience {SHARING}")
    served, most = _served(lost), int(lost["devices"].max())
    if (served == most).all() and most < MORE:
        return Untestable(f"{most} devices were served, and no more were tried; size=full tries more")
    means = lost.groupby("devices")["loss"].mean()
    return over_seeds(served, "loss by devices " + ", ".join(f"{count}: {loss:+.3f}" for count, loss in means.items()))


def room_made(tables: Tables) -> Measured | Untestable:
    """Tell how much less devices lose in the largest fleet when they make room for one another, seed by seed."""
    patient, plain = _patient_and_not(tables)
    if patient.empty or plain.empty:
        return Untestable(f"needs AMS with and without patience {SHARING}")
    most = plain["devices"].max()
    means = [lost[lost["devices"] == most].groupby("seed")["loss"].mean() for lost in (plain, patient)]
    note = f"of {most} devices each loses {means[1].mean():.3f} instead of {means[0].mean():.3f}"
    return over_seeds(means[0] - means[1], note)


def _patient_and_not(tables: Tables) -> tuple[pd.DataFrame, pd.DataFrame]:
    """List what both kinds lose against the one that does not make room, where it never waits."""
    names = [_first(tables, slowdown=True, patient=patient) for patient in (True, False)]
    return _losses(tables, names[0], names[1]), _losses(tables, names[1], names[1])


def _losses(tables: Tables, name: str, against: str) -> pd.DataFrame:
    lost = tables.once(losses, against)
    return lost[lost["system"] == name]


def _first(tables: Tables, *, slowdown: bool, patient: bool) -> str:
    """Name the first AMS system of a kind; nothing if the run has none."""
    kinds = {
        name: (ams["slowdown"], ams["patience"] is not None)
        for name, ams in members(tables, "streaming", "ams").items()
    }
    return next((name for name, kind in kinds.items() if kind == (slowdown, patient)), "")


def _served(lost: pd.DataFrame) -> pd.Series:
    """Find, for every seed, the largest fleet up to which waiting costs less than the limit."""
    rows = []
    for seed, own in lost.groupby("seed"):
        means = own.groupby("devices")["loss"].mean()
        small = means.index[(means < LOSS).cummin()]
        rows.append((seed, max(small, default=1)))
    return by_seed(rows)
