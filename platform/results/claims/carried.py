"""Carry verdicts over a change of the code that alters no table; `golden.py check --carry` runs this.

A line of `evidence/carried.jsonl` says that a newer digest of code stands for an older one. Measurements of benchmarks
are not carried over: equal tables do not show equal times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from driftlab.errors import RequestError
from driftlab.platform.results.claims import cells, ledger
from driftlab.platform.results.claims.base import every_claim
from driftlab.platform.results.claims.ledger import Digests, Line
from driftlab.platform.results.tables.sources import PACKAGE


def changed(lines: Iterable[Line], old: Digests, new: Digests) -> list[tuple[str, str]]:
    """List the old and the new digest of all code that changed, for lines that were valid before."""
    claims = {**every_claim(), **{cell.id: cell for table in cells.every_table().values() for cell in table.cells}}
    pairs: dict[tuple[str, str], None] = {}
    for line in lines:
        experiment, claim = line["experiment"], claims.get(line["claim"])
        if claim is None or experiment.endswith(".py") or ledger.stale(line, claim, old):
            continue
        for then, now in (
            (old.cells(experiment, line["size"]), new.cells(experiment, line["size"])),
            (old.measure(claim.of["relation"]), new.measure(claim.of["relation"])),
        ):
            if then != now and then is not None and now is not None:
                pairs[then, now] = None
    return list(pairs)


def main(words: Sequence[str]) -> None:
    if len(words) != 2:
        raise RequestError("Name the package of the older code, and its revision.")
    package, revision = words
    measured = ledger.newest(ledger.read_ledger(ledger.LEDGER)).values()
    pairs = changed(measured, Digests(Path(package)), Digests(PACKAGE))
    lines = [json.dumps({"from": old, "to": new, "since": revision}) for old, new in pairs]
    known = ledger.CARRIED.read_text(encoding="utf-8").splitlines() if ledger.CARRIED.exists() else []
    with ledger.CARRIED.open("a", encoding="utf-8") as kept:
        kept.writelines(f"{line}\n" for line in lines if line not in known)
    sys.stdout.write(f"Carried {len(pairs)} digests over to the present code, in {ledger.CARRIED}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
