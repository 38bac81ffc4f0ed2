"""Write what stored runs say about claims into pages of the documentation; `docs/claims/` holds the verdicts.

    driftlab claims runs/NAME --json > docs/claims/NAME.json
    python -m driftlab.platform.results.claims.pages docs

A page has a place for a table between two marks: `<!-- claims AMS DELTA-1 -->` names claims, alone or by what their
identifiers begin with, and `<!-- end of claims -->` ends it. A claim is told by the experiment that was made for it.

A run of another size than the one that `NAME.json` holds is stored as `NAME.SIZE.json`. The mark
`<!-- claims AMS of size city -->` shows what the runs of that size say, of those claims that one of them asks, and
`<!-- claims AMS-1 by ams-table2 -->` what the run of another experiment says of a claim.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftlab.errors import DataError
from driftlab.platform.results.claims.base import Claim, Verdict, every_claim, judge, of_ours, of_paper, of_span
from driftlab.platform.results.relations.measured import Measured, Untestable

PLACE = re.compile(
    r"(<!-- claims ([\w -]+?)(?: of size ([\w-]+)| by ([\w.-]+))? -->\n).*?(<!-- end of claims -->)", re.DOTALL
)
HEAD = "| claim | paper | ours | 95 % interval | tells | verdict | run |\n|---|---|---|---|---|---|---|"

Stored = Mapping[str, Mapping[str, Any]]  # name of a file, and what `driftlab claims --json` printed of its run


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the verdicts of all stored runs."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        experiment, size = document.get("experiment"), document.get("size")
        if file.stem not in (experiment, f"{experiment}.{size}"):
            raise DataError(
                f"'{file}' holds a run of '{experiment}'; name the file like its experiment, or '{experiment}.{size}'."
            )
        found[file.stem] = document
    return found


def written(text: str, runs: Stored) -> str:
    """Write the tables of a page anew."""
    return PLACE.sub(lambda place: place[1] + _table(*_asked(place[2], place[3], place[4], runs)) + place[5], text)


def _asked(names: str, size: str | None, by: str | None, runs: Stored) -> tuple[list[Claim], Stored]:
    """Return the claims of a mark and their runs; where it names a size, only claims that a run of that size tells."""
    claims = of_place(names)
    if by is not None:
        return [replace(claim, experiment=by) for claim in claims], runs
    if size is None:
        return claims, runs
    sized = {claim.experiment: runs.get(f"{claim.experiment}.{size}") for claim in claims}
    known = {experiment: run for experiment, run in sized.items() if run is not None}
    return [claim for claim in claims if claim.experiment in known], known


def of_place(names: str) -> list[Claim]:
    """List the claims of a mark, family by family as it names them, and as papers do: N-13b between N-13 and N-14."""
    asked = names.split()
    families = list(dict.fromkeys(name.partition("-")[0] for name in asked))
    claims = [claim for claim in every_claim().values() if {claim.id, _family(claim)} & set(asked)]
    return sorted(claims, key=lambda claim: (families.index(_family(claim)), *_number(claim)))


def _family(claim: Claim) -> str:
    return claim.id.partition("-")[0]


def _number(claim: Claim) -> tuple[int, str]:
    number = claim.id.partition("-")[2]
    return int(number.rstrip("abcd")), number


def _table(claims: Sequence[Claim], runs: Stored) -> str:
    asked = list(dict.fromkeys(claim.experiment for claim in claims if claim.experiment in runs))
    rows = [_row(claim, verdict_of(claim, runs.get(claim.experiment))) for claim in claims]
    origins = [_origin(name, runs[name]) for name in asked]
    return "\n".join([HEAD, *rows, "", *(origins or ["No run is stored yet."]), ""])


def _row(claim: Claim, verdict: Verdict) -> str:
    said = f"{verdict.word}: {verdict.note}" if verdict.note else verdict.word
    cells = (
        f"{claim.id}: {claim.sentence} ({claim.source})",
        of_paper(claim),
        of_ours(verdict),
        of_span(verdict),
        claim.strength,
        said,
        claim.experiment,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def verdict_of(claim: Claim, run: Mapping[str, Any] | None) -> Verdict:
    """Judge what a stored run measured by the rule that the claim has today."""
    if run is None:
        return judge(claim, Untestable("no run is stored"))
    record = next((record for record in run["claims"] if record["id"] == claim.id), None)
    if record is None or record["ours"] is None:
        return judge(claim, Untestable(record["note"] if record else "the stored run did not ask"))
    return judge(claim, Measured(record["ours"], record["low"], record["high"], record["n"], record["note"]))


def _origin(name: str, run: Mapping[str, Any]) -> str:
    seeds = len(run["seeds"])
    size = f" --set size={run['size']}" if run.get("size") else ""
    commit = (run["commit"] or "unknown")[:10]
    return f"* `driftlab run {name}{size}`: {seeds} seed{'' if seeds == 1 else 's'}, commit {commit}"


def main(docs: Path) -> None:
    """Write the tables of all pages."""
    runs = stored(docs / "claims")
    for page in sorted(docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (anew := written(text, runs)) != text:
            page.write_text(anew, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
