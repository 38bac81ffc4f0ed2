"""Lines of a ledger, and the digests that they hold for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftlab.platform.results.claims.base import every_claim, judge
from driftlab.platform.results.claims.ledger import Digests, Line
from driftlab.platform.results.claims.statistics import Measured


class _Constant(Digests):
    """Digests that do not depend on the experiment."""

    def __init__(self, carried: Path, code: str, measure: str) -> None:
        super().__init__(carried=carried)
        self.cells = lambda experiment, size: code
        self.measure = lambda relation: measure
        self.spec = lambda experiment, size: "spec"


def digests(carried: Path = Path("none"), code: str = "code", measure: str = "measure") -> Digests:
    """Return digests of code; by default those that every line of this module was recorded with."""
    return _Constant(carried, code, measure)


TODAY = digests()


def line(name: str, value: float, **more: Any) -> Line:
    """Make a line of two seeds, as a run of full size measured it with the code of today."""
    claim = every_claim()[name]
    claim_fields = {"words": claim.sentence, "paper": claim.paper, "unit": claim.unit, "rule": claim.rule}
    found = Measured(value, value - 0.01, value + 0.01, 2)
    measured = {"value": value, "low": found.low, "high": found.high, "n": 2, "note": "", "per_seed": [value, value]}
    run = {"experiment": claim.experiment, "size": "full", "seeds": [0, 1], "commit": "0123456789abcdef"}
    digests = {"code_digest": "code", "measure_digest": "measure", "spec_digest": "spec"}
    known = {
        "claim": name,
        "source": claim.source,
        "verdict": judge(claim, found).result,
        "machine": {},
        "seconds": 1.0,
    }
    return {**known, **claim_fields, **measured, **run, **digests, **more}


def ledger(folder: Path) -> Path:
    """Make an empty ledger."""
    (folder / "evidence").mkdir()
    file = folder / "evidence/ledger.jsonl"
    file.touch()
    return file
