"""Health of a run: failures of adaptations, and systems that did nothing, were late or do not differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.errors import shortened
from driftlab.platform.core.records import LEARNING_FAILED, NO_END, PREDICTION_FAILED
from driftlab.platform.results.relations.base import CELL, STREAM, completed_cells, learners, members, with_columns
from driftlab.platform.results.relations.lateness import late_shares
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

UNDONE = (LEARNING_FAILED, NO_END)
MOSTLY = 0.5  # of the frames
LONGEST = 200  # characters of a reason


@dataclass(frozen=True)
class MemberFailure:
    """One kind of failure of a system's adaptation; `every`: it has never succeeded in this run."""

    text: str
    every: bool


def member_failures(tables: Tables) -> list[MemberFailure]:
    """List the failures of adaptations, at most one per system and kind of step; skipped batches are none."""
    batches, rounds = with_columns(tables, "adaptations"), with_columns(tables, "updates")
    predicted = batches["skipped"].str.startswith(PREDICTION_FAILED, na=False)
    streams = with_columns(tables, "frames") if predicted.any() else batches
    return [
        *_undone(batches[~predicted], "skipped", "training batch", "training batches"),
        *_undone(rounds[rounds["train_start_s"].notna()], "reason", "training phase", "training phases"),
        *_without_member(batches[predicted], streams),
    ]


def symptoms(tables: Tables) -> list[str]:
    """List methods that never changed weights, were mostly late, or equal another system in every cell."""
    runs = completed_cells(tables)
    methods = runs[runs["bound"].isna()]
    return [*_idle(tables, methods), *_late(tables, methods), *_ties(runs, set(methods["system"]))]


def _idle(tables: Tables, methods: pd.DataFrame) -> Iterator[str]:
    """Yield the methods that learn and changed no weights in some cells."""
    trained = tables.frame("adaptations")
    acted = {*methods["cell"][methods["updates"].fillna(0) > 0], *trained["cell"][trained["skipped"].isna()]}
    learning = learners(tables)
    for system, cells in methods[methods["system"].isin(list(learning))].groupby("system"):
        idle = cells[~cells["cell"].isin(acted)]
        if len(idle) and cells["frames"].notna().any():
            ran_s = ", ".join(f"{length_s:g} s" for length_s in sorted(set(idle["duration_s"].dropna())))
            yield (
                f"{system}: no weights changed in {len(idle)} of {len(cells)} cells. Their sessions ({ran_s}) may be "
                "too short for a first action."
            )


def _late(tables: Tables, methods: pd.DataFrame) -> Iterator[str]:
    """Yield the methods of which most predictions were not ready in time."""
    late = methods.assign(late=methods["cell"].map(late_shares(tables)).astype(float)).dropna(subset=["late"])
    adaptations = members(tables, "adaptation")
    for system, cells in late.groupby("system"):
        if (share := cells["late"].mean()) > MOSTLY:
            own = adaptations.get(system)
            waits = (
                f" It predicts in batches of {own['stream_batch']} frames, and the first waits for the last; set a "
                "smaller stream_batch."
                if own is not None and own["predict_on"] == "batch"
                else ""
            )
            yield (
                f"{system}: {100 * share:.0f} % of the frames had no prediction in time, and score by an earlier one."
                f"{waits}"
            )


def _ties(runs: pd.DataFrame, methods: set[str]) -> Iterator[str]:
    """Yield the pairs with a method whose live scores are equal in every cell that both completed."""
    scored = runs.dropna(subset=[LIVE_SCORE]).astype({LIVE_SCORE: float})
    wide = scored.pivot_table(index=CELL, columns="system", values=LIVE_SCORE)
    for one, other in itertools.combinations(wide.columns, 2):
        both = wide[[one, other]].dropna()
        if len(both) and {one, other} & methods and (both[one] == both[other]).all():
            yield f"{one} and {other} have equal live scores in every cell: one may never act, or they may be the same."


def _undone(rows: pd.DataFrame, column: str, one: str, many: str) -> Iterator[MemberFailure]:
    for system, steps in rows.groupby("system"):
        reasons = steps[column][steps[column].str.startswith(UNDONE, na=False)]
        if len(reasons):
            kind = one if len(steps) == 1 else many
            text = f"{system}: {len(reasons)} of {len(steps)} {kind} failed: {_first(reasons, LEARNING_FAILED)}"
            yield MemberFailure(text, every=bool(steps[column].notna().all()))


def _without_member(failed: pd.DataFrame, frames: pd.DataFrame) -> Iterator[MemberFailure]:
    for system, rows in failed.groupby("system"):
        streams = len(frames[frames["system"] == system].drop_duplicates(STREAM))
        count = len(rows.drop_duplicates(STREAM))
        reason = _first(rows["skipped"], PREDICTION_FAILED)
        text = f"{system}: predictions failed in {count} of {streams} streams: {reason}"
        yield MemberFailure(text, every=count == streams)


def _first(reasons: pd.Series, prefix: str) -> str:
    return shortened(str(reasons.iloc[0]).removeprefix(prefix).removeprefix(": "), LONGEST)
