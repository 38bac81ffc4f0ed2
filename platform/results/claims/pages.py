"""Write what stored runs say about claims into pages of the documentation; `docs/claims/` holds the verdicts.

    driftlab claims runs/NAME --json > docs/claims/NAME.json
    python -m driftlab.platform.results.claims.pages docs

A page has a place for a table between two marks: `<!-- claims AMS DELTA from ams-table1 ams-fig4 -->` names what the
claims' identifiers begin with and the experiments that are asked, in this order; `<!-- end of claims -->` ends it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import DataError
from driftlab.platform.results.claims.base import (
    DASH,
    Claim,
    Measured,
    Untestable,
    Verdict,
    every_claim,
    judge,
    of_ours,
    of_paper,
    of_span,
)

PLACE = re.compile(r"(<!-- claims ([\w ]+) from ([\w -]+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
HEAD = "| claim | paper | ours | 95 % interval | verdict | run |\n|---|---|---|---|---|---|"
NO_RUN = Untestable("no stored run can tell")

Stored = Mapping[str, Mapping[str, Any]]  # experiment, and what `driftlab claims --json` printed of its run


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the verdicts of all stored runs."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("experiment") != file.stem:
            raise DataError(
                f"'{file}' holds a run of '{document.get('experiment')}'; name the file like its experiment."
            )
        found[file.stem] = document
    return found


def written(text: str, runs: Stored) -> str:
    """Write the tables of a page anew."""
    return PLACE.sub(lambda place: place[1] + _table(place[2].split(), place[3].split(), runs) + place[4], text)


def _table(families: Sequence[str], experiments: Sequence[str], runs: Stored) -> str:
    asked = {name: runs[name] for name in experiments if name in runs}
    claims = [claim for claim in every_claim().values() if claim.id.rpartition("-")[0] in families]
    claims.sort(key=lambda claim: _place(claim.id, families))
    rows = [_row(claim, asked) for claim in claims]
    origins = [_origin(name, run) for name, run in asked.items()]
    return "\n".join([HEAD, *rows, "", *(origins or ["No run is stored yet."]), ""])


def _place(name: str, families: Sequence[str]) -> tuple[int, int, str]:
    """Order claims as papers do: N-13b between N-13 and N-14."""
    family, _, number = name.rpartition("-")
    return families.index(family), int(number.rstrip("abcd")), number


def _row(claim: Claim, runs: Stored) -> str:
    """Take the first run that can tell."""
    name, verdict = next(
        ((name, verdict) for name, run in runs.items() if (verdict := verdict_of(claim, run)).measured),
        (DASH, judge(claim, NO_RUN)),
    )
    said = f"{verdict.word}: {verdict.note}" if verdict.note else verdict.word
    cells = (f"{claim.id}: {claim.sentence}", of_paper(claim), of_ours(verdict), of_span(verdict), said, name)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def verdict_of(claim: Claim, run: Mapping[str, Any]) -> Verdict:
    """Judge what a run measured by the rule that the claim has today."""
    record = next((record for record in run["claims"] if record["id"] == claim.id), None)
    if record is None or record["ours"] is None:
        return judge(claim, NO_RUN)
    return judge(claim, Measured(record["ours"], record["low"], record["high"], record["n"], record["note"]))


def _origin(name: str, run: Mapping[str, Any]) -> str:
    seeds = len(run["seeds"])
    return f"* `{name}`: {seeds} seed{'' if seeds == 1 else 's'}, commit {(run['commit'] or 'unknown')[:10]}"


def main(docs: Path) -> None:
    """Write the tables of all pages."""
    runs = stored(docs / "claims")
    for page in sorted(docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (anew := written(text, runs)) != text:
            page.write_text(anew, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
