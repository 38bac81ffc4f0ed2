"""Failures of adaptations: training that was undone, and predictions without the member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.errors import shortened
from driftlab.platform.core.records import LEARNING_FAILED, NO_END, PREDICTION_FAILED
from driftlab.platform.results.relations.base import STREAM, with_columns
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

UNDONE = (LEARNING_FAILED, NO_END)
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
