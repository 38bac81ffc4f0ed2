"""Add the measurements of benchmarks to the ledger of evidence, for cells that no run can measure.

    python -m driftlab.platform.results.claims.benchmarks training_memory --classes 100

The command runs `benchmarks/training_memory.py` with the other words, so that the digests are those of the code that
measured.

Such a cell of a paper's table names its measurement: `benchmark: {name: training_memory, at: [stages_mb, 0]}`. `at`
is the path to the value in a JSON line, `with` are values that the line must have, and `times` is a factor. A
measurement has no interval, so its sign is not compared.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driftlab.errors import RequestError
from driftlab.platform.results.claims import cells, ledger
from driftlab.platform.results.claims.base import Verdict
from driftlab.platform.results.claims.ledger import Digests, Line
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.tables.sources import PACKAGE

Printed = Mapping[str, Any]  # a line of a benchmark


def value_of(cell: cells.PaperCell, printed: Iterable[Printed]) -> float | None:
    """Return the value of a cell in the newest line of its benchmark; None without a line."""
    asked = cell.benchmark
    found = None
    for line in printed:
        if line.get("benchmark") == asked.get("name") and asked.get("with", {}).items() <= line.items():
            value: Any = line
            for step in asked["at"]:
                value = value[step]
            found = float(value) * asked.get("times", 1.0)
    return found


def lines_of(printed: Sequence[Printed], digests: Digests) -> list[Line]:
    """Return a line of the ledger for each cell that these lines measure."""
    every = [cell for table in cells.every_table().values() for cell in table.cells if cell.benchmark]
    return [_line(cell, value, digests) for cell in every if (value := value_of(cell, printed)) is not None]


def _line(cell: cells.PaperCell, value: float, digests: Digests) -> Line:
    file = f"benchmarks/{cell.benchmark['name']}.py"
    return {
        "experiment": file,
        "size": None,
        "seeds": [],
        "commit": _commit(),
        "code_digest": digests.cells(file, None),
        "measure_digest": digests.measure(cell.of["relation"]),
        "spec_digest": digests.spec(file, None),
        "machine": {"architecture": platform.machine()},
        "seconds": None,
        **ledger.fields_of(Verdict(cell, "information", Measured(value), ""), []),
    }


def _commit() -> str:
    """Return the commit of the checkout, which has the ledger."""
    command = ["git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(name: str, words: Sequence[str]) -> list[Printed]:
    """Run a benchmark and return the lines that it prints."""
    file = PACKAGE.parent / "benchmarks" / f"{name}.py"
    if not file.is_file():
        raise RequestError(f"There is no benchmark '{file}'.")
    done = subprocess.run([sys.executable, str(file), *words], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def main(words: Sequence[str]) -> None:
    if not words:
        raise RequestError("Name a benchmark, such as training_memory, and its options.")
    added = ledger.append(ledger.LEDGER, lines_of(run(words[0], words[1:]), Digests()))
    sys.stdout.write(f"Added {added} lines to {ledger.LEDGER}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
