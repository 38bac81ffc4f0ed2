"""The ledger of evidence: one JSON line per claim and run. Lines are appended and never edited."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from driftlab.errors import DataError, RequestError
from driftlab.platform.results.claims.base import Claim, Verdict
from driftlab.platform.results.tables.read import Run
from driftlab.platform.results.tables.sources import PACKAGE, cells_digest, experiment_digest, measure_digest

LEDGER = PACKAGE.parent / "evidence" / "ledger.jsonl"  # in a checkout; a wheel holds none
CARRIED = LEDGER.with_name("carried.jsonl")  # changes of the code that altered no table
Line = Mapping[str, Any]
Key = tuple[str, str, str | None]  # claim, experiment, size


class Digests:
    """The digests of the present code and experiments, each computed once."""

    def __init__(self, package: Path = PACKAGE, carried: Path = CARRIED) -> None:
        self._carried = read_carried(carried)
        self.cells = cache(lambda experiment, size: cells_digest(experiment, size, package))
        self.measure = cache(lambda relation: measure_digest(relation, package))
        self.spec = cache(lambda experiment, size: experiment_digest(experiment, size, package))

    def are_equal(self, then: str, now: str | None) -> bool:
        """Return whether a digest is another one, or was carried over to it, maybe in several steps."""
        found = {then}
        todo = [then]
        while todo:
            todo = [digest for one in todo for digest in self._carried.get(one, ()) if digest not in found]
            found.update(todo)
        return now in found


def lines_of(run: Run, verdicts: Iterable[Verdict], digests: Digests) -> list[Line]:
    """Return a line for each measured claim of a finished run, with the digest of the code that ran it."""
    spec, info = run.spec, run.info
    experiment, size, seeds = spec["name"], spec.get("size"), list(spec["seeds"])
    shared = {
        "experiment": experiment,
        "size": size,
        "seeds": seeds,
        "commit": info.get("git_commit"),
        "code_digest": info.get("cells_digest") if info.get("code_digest") else None,  # None: other code continued it
        "spec_digest": digests.spec(experiment, size),
        "machine": _machine(info),
        "seconds": _seconds(run),
    }
    return [
        {**shared, "measure_digest": digests.measure(one.claim.of["relation"]), **fields_of(one, seeds)}
        for one in verdicts
        if one.measured
    ]


def fields_of(verdict: Verdict, seeds: Sequence[int]) -> Line:
    """Return the fields of a line that hold the claim and its measured value."""
    claim, found = verdict.claim, verdict.measured
    assert found is not None, f"nothing was measured of claim '{claim.id}'"
    return {
        "claim": claim.id,
        "words": claim.sentence,
        "source": claim.source,
        "paper": claim.paper,
        "unit": claim.unit,
        "rule": claim.rule,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "n": found.n,
        "per_seed": [found.by_seed.get(seed) for seed in seeds] if found.by_seed else None,
        "verdict": verdict.result,
        "note": verdict.note,
    }


def _machine(info: Mapping[str, Any]) -> Line:
    """Return the architecture, processor and torch version of a run's host, without the host's name."""
    kinds = {"architecture": "machine", "processor": "processor", "instructions": "instructions"}
    return {**{key: info.get(name) for key, name in kinds.items()}, "torch": info.get("packages", {}).get("torch")}


def _seconds(run: Run) -> float | None:
    """Add up the host seconds of all cells; None if one of them was not measured."""
    took = run.table("runs")["host_seconds"].to_pylist()
    return None if None in took else round(sum(took), 1)


def append(file: Path, lines: Iterable[Line]) -> int:
    """Append the lines that differ from the newest of their claim and run; return their number.

    Other processes may append at the same time. An unfinished last line, left by a killed process, is removed.
    """
    if not file.is_file():
        raise RequestError(f"There is no ledger '{file}': evidence is kept in a checkout of driftlab. Run it from one.")
    with file.open("a+b") as ledger:  # writes go to the end wherever the read position is
        fcntl.flock(ledger, fcntl.LOCK_EX)  # which the end of the block releases
        ledger.seek(0)
        text = ledger.read()
        recorded = newest(_parsed(text, file))
        added = [line for line in lines if recorded.get(key_of(line)) != line]
        whole, end, torn = text.rpartition(b"\n")
        if torn and _whole(torn) is None:
            ledger.truncate(len(whole + end))
            torn = b""
        dumped = [json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n" for line in added]
        ledger.write((b"\n" if torn else b"") + "".join(dumped).encode())
    return len(added)


def read_ledger(file: Path) -> list[Line]:
    """Read all lines, the oldest first, without an unfinished last line."""
    return _parsed(file.read_bytes(), file)


def read_carried(file: Path) -> Mapping[str, Sequence[str]]:
    """Read the digests to which each digest was carried over; a missing file holds none."""
    found: dict[str, list[str]] = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        line = json.loads(text)
        found.setdefault(line["from"], []).append(line["to"])
    return found


def _parsed(text: bytes, file: Path) -> list[Line]:
    *ended, torn = text.split(b"\n")
    found = [_whole(line) for line in ended]
    if None in found:
        raise DataError(
            f"Line {found.index(None) + 1} of '{file}' is damaged. Restore it from the history of the file."
        )
    last = _whole(torn)
    return [line for line in [*found, last] if line is not None]


def _whole(text: bytes) -> Line | None:
    """Parse a line; None if it is not a complete object with a claim, an experiment and a size."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"claim", "experiment", "size"} <= line.keys() else None


def key_of(line: Line) -> Key:
    """Return the claim, experiment and size of a line; the last line with a key is valid."""
    return line["claim"], line["experiment"], line["size"]


def newest(lines: Iterable[Line]) -> dict[Key, Line]:
    """Keep the last line of each claim, experiment and size, in the order in which they were added."""
    found: dict[Key, Line] = {}
    for line in lines:
        found.pop(key_of(line), None)
        found[key_of(line)] = line
    return found


def stale(line: Line, claim: Claim, digests: Digests) -> str:
    """Return which of code, measures, experiment and claim changed since the line; empty if none did."""
    if None in (line["spec_digest"], line["code_digest"], line["measure_digest"]):
        return "recorded without digests"
    then = {"experiment": line["spec_digest"], "code": line["code_digest"], "measures": line["measure_digest"]}
    now = {
        "experiment": digests.spec(line["experiment"], line["size"]),
        "code": digests.cells(line["experiment"], line["size"]),
        "measures": digests.measure(claim.of["relation"]),
    }
    changed = [name for name in now if not digests.are_equal(then[name], now[name])]
    claim_fields = {"words": claim.sentence, "paper": claim.paper, "unit": claim.unit, "rule": claim.rule}
    if any(line[name] != value for name, value in claim_fields.items()):
        changed.append("claim")
    return f"other {' and '.join(changed)} since" if changed else ""
