"""A run in a few words and a table or two: which parts a summary has follows from what the tables hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftlab.platform.results.figures.base import View
from driftlab.platform.results.report.summary import scores, sharing
from driftlab.platform.results.report.summary.base import Kind, Part, cells, count, failed

KINDS: Sequence[Kind] = (scores.show, sharing.show)


@dataclass(frozen=True)
class Summary:
    """What was run and what came out."""

    words: Sequence[str]
    parts: Sequence[Part]


def summarise(view: View) -> Summary:
    """Sum a run up in every way that it has something for."""
    parts = [part for kind in KINDS if (part := kind(view)) is not None]
    told = [sentence for part in parts for sentence in (*part.words, *part.warnings)]
    return Summary([_what_was_run(view), *told], parts)


def _what_was_run(view: View) -> str:
    runs = cells(view)
    if runs.empty:
        return "No cell of this run is complete yet."
    bounds = set(runs.dropna(subset=["bound"])["system"])
    methods = set(runs["system"]) - bounds
    parties = [count(len(kind), noun) for kind, noun in ((methods, "method"), (bounds, "bound")) if kind]
    ended = f"of which {failed(runs)} failed." if failed(runs) else "all of them complete."
    return (
        f"{' and '.join(parties)} on {count(runs['setting'].nunique(), 'workload')}, "
        f"{count(runs['seed'].nunique(), 'seed')}: {count(len(runs), 'cell')}, {ended}"
    )
