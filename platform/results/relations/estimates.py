"""Errors and costs of estimated accuracies, and controls that need no estimator.

Errors are mean absolute differences from the accuracy on later frames of the domain, of the networks that were trained.
A control is compared with the estimates of the same phases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from driftlab.platform.results.relations.base import STREAM, Kinds, completed_cells, first_of, no_rows, pair_rows
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

When = Literal["before", "after"]
Control = Literal["constant", "source", "observed", "agreement"]
CONTROLS: tuple[Control, ...] = ("constant", "source", "observed", "agreement")
PLACE = ["workload", "seed"]
NEEDS = "needs '{}' with estimated accuracies and later frames with truth"


def phases(tables: Tables, when: When = "after") -> pd.DataFrame:
    """List the estimates of trained networks: estimated, true and control values, and errors.

    `constant` is the median of the true accuracies of an application in all cells, the best constant in hindsight.
    `source` is the accuracy of the network on test data of the source. `observed` and `agreement` are monitors: they
    use the network after the phase, which estimates do not.
    """
    rows = tables.frame("estimates").merge(completed_cells(tables)[["cell", "system", "fleet", *PLACE]], on="cell")
    rows = rows.dropna(subset=[f"true_{when}", when])
    networks = tables.frame("variants")[[*STREAM, "variant", "accuracy"]].rename(columns={"accuracy": "source"})
    rows = rows.assign(variant=rows["variant"].fillna(0)).merge(networks, on=[*STREAM, "variant"], how="left")
    true = rows[f"true_{when}"].astype(float)
    rows["constant"] = true.groupby([rows[key] for key in ("system", "app")]).transform("median")
    values = {name: f"{name}_{when}" if name in ("observed", "agreement") else name for name in CONTROLS}
    errors = {f"{name}_error": (rows[column].astype(float) - true).abs() for name, column in values.items()}
    return rows.assign(true=true, estimate=rows[when], error=(rows[when] - true).abs(), **errors)


def errors(tables: Tables, ours: Kinds, theirs: Kinds, when: When = "after") -> pd.DataFrame:
    """List the mean error of two systems' estimates by workload and seed."""
    rows, names = phases(tables, when), [first_of(tables, system) for system in (ours, theirs)]
    found = [rows[rows["system"] == name].groupby(PLACE)["error"].mean() for name in names]
    if any(one.empty for one in found):
        return no_rows(NEEDS.format(names[0] or ours) + f" and '{names[1] or theirs}'")
    return pair_rows(found[0], found[1], f"errors {found[0].mean():.3f} and {found[1].mean():.3f}").dropna()


def errors_of_control(tables: Tables, system: Kinds, control: Control, when: When = "after") -> pd.DataFrame:
    """List the mean error of a control and of estimates in the same phases, by workload and seed."""
    name = first_of(tables, system)
    rows = phases(tables, when)
    rows = rows[rows["system"] == name].dropna(subset=[f"{control}_error"])
    if rows.empty:
        return no_rows(NEEDS.format(name or system))
    means = rows.groupby(PLACE)[[f"{control}_error", "error"]].mean()
    note = f"errors {means.iloc[:, 0].mean():.3f} and {means['error'].mean():.3f}"
    return pair_rows(means[f"{control}_error"], means["error"], note)


def rounds(tables: Tables) -> pd.DataFrame:
    """List the cost of estimating all configurations of each round; memory includes the largest network."""
    rows = tables.frame("estimates").drop_duplicates([*STREAM, "time_s"])
    rows = rows.merge(completed_cells(tables)[["cell", "system", *PLACE]], on="cell")
    weights = tables.frame("variants").groupby(STREAM)["memory_bytes"].max().rename("weights").reset_index()
    rows = rows.merge(weights, on=STREAM, how="left")
    return rows.assign(memory_bytes=rows["memory_bytes"] + rows["weights"].fillna(0))


def costs(tables: Tables, ours: Kinds, theirs: Kinds, column: str) -> pd.DataFrame:
    """List the mean cost of estimating all configurations once, of two systems by workload and seed."""
    rows, names = rounds(tables), [first_of(tables, system) for system in (ours, theirs)]
    found = [rows[rows["system"] == name].groupby(PLACE)[column].mean() for name in names]
    if any(one.empty for one in found):
        return no_rows(NEEDS.format(names[0] or ours) + f" and '{names[1] or theirs}'")
    return pair_rows(*found).dropna()
