"""Conditions of claims on a run: stream length, number of updates, time until the first update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from driftlab.platform.results.relations.base import STREAM, completed_cells, members
from driftlab.platform.results.tables.read import Tables


def missing_assumption(tables: Tables, assumes: Mapping[str, Any]) -> str:
    """Return the first assumption of a claim that the run does not meet; an empty text if it meets all."""
    return next(filter(None, (ASSUMPTIONS[name](tables, least) for name, least in assumes.items())), "")


def _stream_s(tables: Tables, least: float) -> str:
    """Check that every stream lasts at least this many seconds."""
    shortest = completed_cells(tables)["duration_s"].min()
    return f"needs streams of {least:g} s, these last {shortest:g} s" if shortest < least else ""


def _updates(tables: Tables, least: Mapping[str, float]) -> str:
    """Check that systems with these streaming members receive enough updates on average."""
    for member, count in least.items():
        for system, mean in _received(tables, member).items():
            if mean < count:
                return f"needs {count:g} updates for an application, {system} receives {mean:.1f}"
    return ""


def _received(tables: Tables, member: str) -> dict[str, float]:
    """Average the updates that every application accepts from the server, by system."""
    runs = completed_cells(tables)
    runs = runs[runs["system"].isin(list(members(tables, "streaming", member)))]
    updates = tables.frame("updates")
    counts = updates[updates["accepted"].eq(True)].groupby(STREAM).size()
    apps = tables.frame("frames")[STREAM].drop_duplicates().merge(runs[["cell", "system"]], on="cell").set_index(STREAM)
    means = apps.assign(updates=counts).fillna({"updates": 0}).groupby("system")["updates"].mean()
    return {str(system): float(mean) for system, mean in means.items()}


def _warm_up(tables: Tables, most: float) -> str:
    """Check that the wait for the first update is at most this share of the stream."""
    updates = tables.frame("updates").merge(completed_cells(tables)[["cell", "system", "duration_s"]], on="cell")
    updates = updates[updates["accepted"].eq(True) & updates["system"].isin(list(members(tables, "streaming", "ams")))]
    parts = updates.groupby([*STREAM, "duration_s"])["arrive_s"].min().reset_index()
    part = (parts["arrive_s"] / parts["duration_s"]).mean()
    return (
        f"needs streams of which at most {most:.0%} pass before the first update, here {part:.0%}"
        if part > most
        else ""
    )


ASSUMPTIONS: dict[str, Callable[[Tables, Any], str]] = {
    "stream_s": _stream_s,
    "updates": _updates,
    "warm_up": _warm_up,
}
