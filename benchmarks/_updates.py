"""Comparison of two updates of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Update:
    """The change of a layer in a phase, and which of its weights the surrogate had."""

    change: np.ndarray  # [filter, weight]
    kept: np.ndarray  # likewise


def compare(first: Update, second: Update) -> dict[str, float]:
    """Return the values of a line for two updates; NaN where there is nothing to compare."""
    both, rows = first.kept & second.kept, first.kept.any(axis=1) & second.kept.any(axis=1)
    ours, theirs = first.change * both, second.change * both
    learned = ours.any(axis=1) & theirs.any(axis=1)
    ours, theirs = ours[learned], theirs[learned]
    sizes = [np.abs(one.change)[which] for one, which in ((first, both), (second, both), (second, second.kept & ~both))]
    before, after, others = (float(one.mean()) if one.size else np.nan for one in sizes)
    return {
        "joint": float(rows.sum() / first.kept.any(axis=1).sum()),
        "acute": _acute(ours, theirs),
        "by_chance": _acute(ours, np.roll(theirs, 1, axis=0)) if len(ours) > 1 else np.nan,
        "later": after / before if before else np.nan,
        "others": after / others if others else np.nan,
    }


def _acute(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(((ours * theirs).sum(axis=1) > 0).mean()) if len(ours) else np.nan
