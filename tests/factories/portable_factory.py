"""The ten cells of portable runs, and digests of their tables, column by column.

After a change of the code or the packages: `python tests/factories/portable_factory.py store` computes them again.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/portable"
STORED = FOLDER / "digests.json"
DOCUMENTS = ("streets", "signs")
PACKAGES = ("av", "numpy", "opencv-python-headless", "scipy", "torch")  # other versions compute other bits

Digests = dict[str, dict[str, dict[str, str]]]  # cell -> table -> column -> digest


def versions() -> dict[str, str]:
    """Name everything except the code that the digests depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def compute(folder: Path, portable: bool) -> Digests:
    """Run the cells in this process, and hash their tables."""
    import driftlab

    found: Digests = {}
    for name in DOCUMENTS:
        outcome = driftlab.run(
            str(FOLDER / f"{name}.yaml"), [f"compute.portable={portable}".lower()], out=folder / name
        )
        assert not outcome.failed, outcome.failed
        found |= digests(outcome.directory)
    return found


def digests(directory: Path) -> Digests:
    """Digest every column of a run that the host has no part in."""
    import pyarrow.compute as pc

    from driftlab.platform.results.tables.read import open_run
    from driftlab.platform.results.tables.schema import TABLES, host_columns

    run = open_run(directory)
    tables = {name: run.table(name) for name in TABLES}  # a run does not keep the tables that it has read
    found: Digests = {}
    for cell in tables["runs"]["cell"].to_pylist():
        for name, table in tables.items():
            rows = table.filter(pc.equal(table["cell"], cell))
            columns = [one for one in rows.column_names if one not in host_columns(name)]
            if len(rows):
                found.setdefault(cell, {})[name] = {one: _digest(rows[one].to_pylist()) for one in columns}
    return found


def _digest(values: list[Any]) -> str:
    """Hash values by a text that is unique for each."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:8]


def differences(found: Digests, stored: Digests) -> list[str]:
    """Name every cell, table and column that differs."""
    if found.keys() != stored.keys():
        return [f"cells {sorted(found)} instead of {sorted(stored)}"]
    return [
        f"cell '{cell}', table '{table}', columns: {', '.join(columns)}"
        for cell, tables in stored.items()
        for table in sorted(tables.keys() | found[cell].keys())
        if (columns := _unequal(found[cell].get(table, {}), tables.get(table, {})))
    ]


def _unequal(a: dict[str, str], b: dict[str, str]) -> list[str]:
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def main(word: str) -> None:
    """Compute the digests and print or store them; `plain` computes them without the settings."""
    from driftlab.platform.sim.portable import restart

    restart(word != "plain")
    with tempfile.TemporaryDirectory() as folder:
        found = compute(Path(folder), word != "plain")
    document = {"versions": versions(), "libc": " ".join(platform.libc_ver()), "digests": found}
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if word == "store":
        STORED.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
