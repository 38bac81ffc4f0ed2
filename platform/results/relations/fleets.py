"""Score loss of devices that wait for a shared GPU, by the size of their fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import (
    Untestable,
    by_seed,
    completed_cells,
    members,
    no_rows,
    pair_rows,
    value_rows,
)
from driftlab.platform.results.tables.columns import PAPER_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

LOSS = 0.01  # of score; a device counts as served if waiting costs less
MORE = 10  # devices, one more than the paper's GPU serves
SHARING = "in fleets of several sizes, one of them with a GPU for each device"


def losses(tables: Tables, score: str, against: str | None = None) -> pd.DataFrame:
    """List the score loss of each device relative to the same device that never waits: `devices`, `loss`.

    A device never waits in a fleet with a GPU for each device; the largest such fleet is the reference. There it runs
    the same system, or the system `against`.
    """
    runs = completed_cells(tables)
    columns = ["cell", "system", "workload", "seed", "fleet", "devices"]
    rows = tables.frame("devices").merge(runs[columns], on="cell").sort_values("devices")
    device = ["workload", "seed", "device"]
    key = ["system", *device] if against is None else device
    alone = rows["fleet"].isin(without_waiting(tables))
    own = rows[alone] if against is None else rows[alone & (rows["system"] == against)]
    own = own.drop_duplicates(key, keep="last")[[*key, score]]
    shared = rows[~alone].merge(own, on=key, suffixes=("", "_alone"))
    return shared.assign(loss=shared[f"{score}_alone"] - shared[score])[["system", *device, "devices", "loss"]]


def without_waiting(tables: Tables) -> set[str]:
    """Name the fleets with a GPU for each device."""
    spec = tables.run.spec
    fleets, usual = spec.get("fleets", ()), spec.get("server", {}).get("gpus", 1)
    sizes = {part["name"]: sum(each.get("count", 1) for each in part.get("devices", ({},))) for part in fleets}
    return {part["name"] for part in fleets if (part.get("gpus") or usual) >= sizes[part["name"]]}


def devices_by_slowdown(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List how many devices a GPU serves with and without adaptive training intervals, by seed."""
    names = [_first(tables, slowdown=slowdown, patient=False) for slowdown in (True, False)]
    adaptive, steady = (_losses(tables, score, name, name) for name in names)
    if adaptive.empty or steady.empty:
        return no_rows(f"needs AMS with and without slowdown {SHARING}")
    if adaptive["loss"].tolist() == steady["loss"].tolist():
        raise Untestable("training intervals never adapted, both sides lost the same; streams need still scenes")
    served, without = _served(adaptive), _served(steady)
    note = f"{served.mean():.3g} with, {without.mean():.3g} without; tried up to {adaptive['devices'].max()}"
    return pair_rows(served, without, note)


def patient_devices(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the number of patient devices that a GPU serves, by seed."""
    lost, _ = _patient_and_not(tables, score)
    if lost.empty:
        return no_rows(f"needs AMS with and without patience {SHARING}")
    served, most = _served(lost), int(lost["devices"].max())
    if (served == most).all() and most < MORE:
        raise Untestable(f"{most} devices were served, and no larger fleet ran; size=full has larger ones")
    means = lost.groupby("devices")["loss"].mean()
    return value_rows(served, "loss by devices " + ", ".join(f"{count}: {loss:+.3f}" for count, loss in means.items()))


def losses_by_patience(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the loss in the largest fleet by seed: `ours` of impatient devices, `theirs` of patient ones."""
    patient, plain = _patient_and_not(tables, score)
    if patient.empty or plain.empty:
        return no_rows(f"needs AMS with and without patience {SHARING}")
    most = plain["devices"].max()
    means = [stats.over_seeds(lost[lost["devices"] == most].set_index("seed")["loss"]) for lost in (plain, patient)]
    return pair_rows(
        means[0], means[1], f"of {most} devices each loses {means[1].mean():.3f} instead of {means[0].mean():.3f}"
    )


def _patient_and_not(tables: Tables, score: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """List the losses of patient and of impatient devices, both against impatient devices that never wait."""
    names = [_first(tables, slowdown=True, patient=patient) for patient in (True, False)]
    return _losses(tables, score, names[0], names[1]), _losses(tables, score, names[1], names[1])


def _losses(tables: Tables, score: str, name: str, against: str) -> pd.DataFrame:
    lost = tables.once(losses, score, against)
    return lost[lost["system"] == name]


def _first(tables: Tables, *, slowdown: bool, patient: bool) -> str:
    """Return the first AMS system of a kind, or an empty text."""
    kinds = {
        name: (ams["adaptive_training"], ams["patience"] is not None)
        for name, ams in members(tables, "streaming", "ams").items()
    }
    return next((name for name, kind in kinds.items() if kind == (slowdown, patient)), "")


def _served(lost: pd.DataFrame) -> pd.Series:
    """Return, for every seed, the largest fleet up to which waiting costs less than the limit."""
    rows = []
    for seed, own in lost.groupby("seed"):
        means = own.groupby("devices")["loss"].mean()
        small = means.index[(means < LOSS).cummin()]
        rows.append((seed, max(small, default=1)))
    return by_seed(rows)
