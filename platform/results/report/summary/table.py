"""Summary of a run: headline, sentences and tables, as far as the run has data for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from driftlab.platform.results.figures.base import View
from driftlab.platform.results.isolation import attempt
from driftlab.platform.results.relations.tuned import how_chosen
from driftlab.platform.results.report.summary import scores, sharing
from driftlab.platform.results.report.summary.base import Kind, Part, cells, count, failed
from driftlab.platform.results.report.summary.gains import basis, headline

OFFLINE = ("local", "on_device")  # streaming members that send nothing by design
UNSENT_HINT = "A session may end before the first upload, or a rule never triggers: compare their periods."
KINDS: Sequence[Kind] = (scores.show, sharing.show)


@dataclass(frozen=True)
class Summary:
    """Headline, sentences and tables of a run."""

    findings: Sequence[str]
    sentences: Sequence[str]
    parts: Sequence[Part]
    warnings: Sequence[str] = ()  # parts that failed and unused links


def summarise(view: View) -> Summary:
    """Return the summary of a run with every part that has data."""
    faults = list[str]()
    found = [
        attempt(f"The table of {kind.__module__.rpartition('.')[2]}", partial(kind, view), faults) for kind in KINDS
    ]
    parts = [part for part in found if part is not None]
    findings = attempt("The headline", lambda: headline(view), faults) or ()
    sentences = [sentence for part in parts for sentence in (*part.sentences, *part.warnings)]
    about = [*([basis(view)] if findings else []), _run_size(view), *how_chosen(view.tables), *sentences]
    return Summary(findings, about, parts, [*(f"{fault}." for fault in faults), *unsent(view)])


def unsent(view: View) -> list[str]:
    """Return a warning if methods that use a link sent no bytes."""
    runs = view.runs.dropna(subset=["uplink_bytes", "downlink_bytes"])
    if runs.empty:
        return []
    sent = (runs["uplink_bytes"] + runs["downlink_bytes"]).groupby(runs["system"]).sum()
    names = runs["streaming"].str.split("(").str[0]  # without parameters
    senders = set(runs[~names.isin(OFFLINE) & names.notna() & runs["bound"].isna()]["system"])
    silent = [name for name in view.styles if name in senders and sent.get(name) == 0]
    return [f"No bytes were sent by {', '.join(silent)}. {UNSENT_HINT}"] if silent else []


def _run_size(view: View) -> str:
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
