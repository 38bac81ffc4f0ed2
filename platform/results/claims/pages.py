"""Write the verdicts of the ledger of evidence into pages of the documentation.

    driftlab claims runs/NAME --record
    python -m driftlab.platform.results.claims.pages docs

The ledger is `evidence/ledger.jsonl` next to the pages' folder. A page has a place for a table between two marks:
`<!-- claims AMS DELTA-1 -->` lists claims or prefixes of their identifiers, and `<!-- end of claims -->` ends the
table. The value of a claim comes from the experiment that tests it.

The mark `<!-- paper Table ams-table1 -->` begins a table of a paper, and `<!-- end of paper -->` ends it. Each cell has
the value of the run that it names, else of the newest one, and the run that measured it.

The column "evidence" names the score that a claim reads: the score of the papers, where late predictions count
as if they were in time, or the live score.

The mark `<!-- claims AMS of size city -->` shows the claims that runs of that size measured, and
`<!-- claims AMS-1 by ams-table2 -->` the value that another experiment measured. A size of an experiment that any mark
lists is shown in the tables of these marks only; other tables show the most recent of the remaining sizes. A line is
marked as stale if the code, the experiment or the claim has changed since it was recorded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from driftlab.errors import DataError
from driftlab.platform.results.claims import cells
from driftlab.platform.results.claims.base import (
    DASH,
    NO_RUN,
    Claim,
    Verdict,
    every_claim,
    format_evidence,
    format_interval,
    format_paper,
    format_value,
    judge,
)
from driftlab.platform.results.claims.ledger import Digests, Key, Line, newest, read_ledger, stale
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.relations.base import Untestable

PLACE = re.compile(
    r"(<!-- claims ([\w -]+?)(?: of size ([\w-]+)| by ([\w.-]+))? -->\n).*?(<!-- end of claims -->)", re.DOTALL
)
PAPER_PLACE = re.compile(r"(<!-- paper Table ([\w-]+) -->\n).*?(<!-- end of paper -->)", re.DOTALL)
HEAD = "| claim | paper | ours | 95 % interval | evidence | verdict | run |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Evidence:
    """The newest lines of a ledger, and the sizes of experiments that marks name."""

    lines: dict[Key, Line]
    sizes: frozenset[tuple[str, str]] = frozenset()  # with their experiments
    digests: Digests = field(default_factory=Digests)

    def of(self, experiment: str, size: str | None) -> dict[str, Line]:
        """Return the lines of an experiment by claim, at this size or, for None, the most recent size."""
        own = [line for line in self.lines.values() if line["experiment"] == experiment]
        if size is None:
            own = [line for line in own if (experiment, line["size"]) not in self.sizes]
        return {line["claim"]: line for line in own if line["size"] == (size or own[-1]["size"])}

    def stale(self, line: Line) -> str:
        """Return the reason why a line is stale; empty if it is not."""
        return stale(line, every_claim()[line["claim"]], self.digests)


def evidence_of(docs: Path) -> Evidence:
    """Read the ledger next to a folder of pages, and the sizes in their marks."""
    file = docs.absolute().parent / "evidence" / "ledger.jsonl"
    if not file.is_file():
        raise DataError(f"There is no ledger '{file}', so the pages stay as they are.")
    return Evidence(
        newest(read_ledger(file)), sizes_in(page.read_text(encoding="utf-8") for page in docs.rglob("*.md"))
    )


def sizes_in(pages: Iterable[str]) -> frozenset[tuple[str, str]]:
    """List the experiments and sizes that the marks on pages name."""
    marks = [(names, size) for text in pages for _, names, size, *_ in PLACE.findall(text) if size]
    return frozenset((claim.experiment, size) for names, size in marks for claim in of_place(names))


def fill_tables(text: str, evidence: Evidence) -> str:
    """Return a page with all of its tables rewritten."""
    text = PLACE.sub(lambda place: place[1] + _table(place[2], place[3], place[4], evidence) + place[5], text)
    return PAPER_PLACE.sub(lambda place: place[1] + _paper_table(place[2], evidence) + place[3], text)


def _paper_table(name: str, evidence: Evidence) -> str:
    """Return a table of a paper with the value of each cell and its run."""
    table = cells.table_of(name)
    lines = [cell.preferred(evidence.lines.values()) for cell in table.cells]
    verdicts = [cells.verdict_of(cell, line) for cell, line in zip(table.cells, lines, strict=True)]
    runs = [_run_of(cell, line, evidence) for cell, line in zip(table.cells, lines, strict=True)]
    rows = [(*texts, run) for texts, run in zip(cells.as_rows(verdicts), runs, strict=True)]
    head = [(*cells.COLUMNS, "run"), ("---",) * (len(cells.COLUMNS) + 1)]
    return "\n".join(
        [f"{table.source}: {table.title}.", "", *(f"| {' | '.join(texts)} |" for texts in head + rows), ""]
    )


def _run_of(cell: cells.PaperCell, line: Line | None, evidence: Evidence) -> str:
    if line is None:
        return DASH
    claim = cell if line["claim"] == cell.id else every_claim()[cell.claim]
    run = ", ".join(filter(None, (line["experiment"], line["size"])))
    return run + (", *stale*" if stale(line, claim, evidence.digests) else "")


def _table(names: str, size: str | None, by: str | None, evidence: Evidence) -> str:
    """Return the table of a mark; a mark with a size shows only claims that a run of that size measured."""
    claims = [replace(claim, experiment=by or claim.experiment) for claim in of_place(names)]
    runs = {claim.experiment: evidence.of(claim.experiment, size) for claim in claims}
    if size is not None:
        claims = [claim for claim in claims if runs[claim.experiment]]
    lines = [runs[claim.experiment].get(claim.id) for claim in claims]
    rows = [_row(claim, line, evidence) for claim, line in zip(claims, lines, strict=True)]
    origins = dict.fromkeys(_origin(line, evidence) for line in lines if line)
    never = sum(bool(claim.not_testable) for claim in claims)
    apart = [f"* {never} of these {len(claims)} claims: {NO_RUN}"] if never else []
    return "\n".join([HEAD, *rows, "", *(origins or ["No run is recorded yet."]), *apart, ""])


def of_place(names: str) -> list[Claim]:
    """List the claims of a mark in the order of its families, then by number: N-13b follows N-13."""
    prefixes = names.split()
    families = list(dict.fromkeys(name.partition("-")[0] for name in prefixes))
    claims = [claim for claim in every_claim().values() if {claim.id, _family(claim)} & set(prefixes)]
    return sorted(claims, key=lambda claim: (families.index(_family(claim)), *_number(claim)))


def _family(claim: Claim) -> str:
    return claim.id.partition("-")[0]


def _number(claim: Claim) -> tuple[int, str]:
    number = claim.id.partition("-")[2]
    return int(number.rstrip("abcd")), number


def _row(claim: Claim, line: Line | None, evidence: Evidence) -> str:
    verdict = verdict_of(claim, line)
    cells = (
        f"{claim.id}: {claim.sentence} ({claim.source})",
        format_paper(claim),
        format_value(verdict),
        format_interval(verdict),
        format_evidence(claim),
        f"{verdict.result}: {verdict.note}" if verdict.note else verdict.result,
        f"{claim.experiment}, *stale*" if line and evidence.stale(line) else claim.experiment,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def verdict_of(claim: Claim, line: Line | None) -> Verdict:
    """Judge the value of a line of the ledger by the claim's present rule."""
    if line is None:
        return judge(claim, Untestable(claim.not_testable or "no value is recorded"))
    return judge(claim, Measured(line["value"], line["low"], line["high"], line["n"], line["note"]))


def _origin(line: Line, evidence: Evidence) -> str:
    seeds = len(line["seeds"])
    size = f" --set size={line['size']}" if line["size"] else ""
    run = f"* `driftlab run {line['experiment']}{size}`: {seeds} seed{'' if seeds == 1 else 's'}"
    why = evidence.stale(line)
    return f"{run}, commit {(line['commit'] or 'unknown')[:10]}" + (f"; *stale*: {why}" if why else "")


def main(docs: Path) -> None:
    """Rewrite the tables of all pages."""
    evidence = evidence_of(docs)
    for page in sorted(docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (filled := fill_tables(text, evidence)) != text:
            page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except DataError as error:
        sys.exit(str(error))
