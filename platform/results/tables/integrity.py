"""Warnings about a run's rows: changed files, code of several versions, an edited spec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from driftlab.errors import as_typed
from driftlab.platform.results.tables.columns import LIVE_SCORE, PAPER_SCORE
from driftlab.platform.results.tables.diff import spec_differences
from driftlab.platform.results.tables.origin import Seal, cell_spec, digest_of, seal_of
from driftlab.platform.results.tables.read import Run
from driftlab.platform.results.tables.recorder import OTHERS, table_file

DIFFERENCES_SHOWN = 3


def warnings_of(run: Run) -> list[str]:
    """Return the warnings on a run's rows; cells without a seal cannot be checked."""
    tables, runs = run.path / "tables", run.table("runs")
    names = runs.select(["cell", "system", "workload", "fleet", "seed"]).to_pylist()
    scores = runs.select(["cell", LIVE_SCORE, PAPER_SCORE]).to_pylist()
    misplaced = len({row["cell"] for row in names}) < len(names)
    found = [(row, seal) for row in names if (seal := _seal(tables, row["cell"])) is not None]
    changed = [row["cell"] for row, seal in found if not _as_written(tables, row["cell"], seal)]
    versions = [(row["system"], seal.origin.versions) for row, seal in found if seal.origin is not None]
    edited = dict.fromkeys(line for row, seal in found for line in _edited(run, row, seal))
    without = [row["cell"] for row in scores if row[PAPER_SCORE] is not None and row[LIVE_SCORE] is None]
    warnings = []
    if without:
        warnings.append(
            f"Warning: {len(without)} cells have no live score, as an older driftlab computed them: "
            f"{as_typed('driftlab', 'run', '--resume', run.path)} repeats them."
        )
    if misplaced:
        warnings.append("Warning: a cell exists twice; remove the file in 'runs' whose name is not that of its cell.")
    if changed:
        warnings.append(f"Warning: files of {len(changed)} cells changed after they were written: {changed[0]}, ….")
    if mixes_versions(versions):
        warnings.append("Warning: cells were computed by different versions of driftlab, torch or a member's file.")
    if edited:
        shown = "; ".join(list(edited)[:DIFFERENCES_SHOWN])
        warnings.append(f"Warning: spec.yaml was edited after the cells ran (then vs now): {shown}.")
    return warnings


def mixes_versions(versions: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
    """Return whether several versions of the code made the cells, given system and versions of each.

    A cell lists only the versions of the members in its system, so cells are compared per system and per member.
    """
    parts, wholes = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for system, of in versions:
        wholes[system].add(str(of))
        for name, version in of.items():
            parts[name].add(str(version))
    return any(len(found) > 1 for found in (*parts.values(), *wholes.values()))


def _seal(tables: Path, cell: str) -> Seal | None:
    file = table_file(tables, "runs", cell)
    return seal_of(file) if file.is_file() else None


def _as_written(tables: Path, cell: str, seal: Seal) -> bool:
    files = {name: table_file(tables, name, cell) for name in OTHERS}
    return all(file.is_file() and digest_of(file) == seal.files.get(name) for name, file in files.items())


def _edited(run: Run, row: Mapping[str, Any], seal: Seal) -> Iterator[str]:
    """Yield the settings that differ between the present spec and that of a cell and that both have."""
    if seal.origin is None:
        return
    try:
        now = cell_spec(run.spec, row["system"], row["workload"], row["fleet"], row["seed"])
    except (KeyError, TypeError):
        yield f"the cell '{row['cell']}' is not in it"
        return
    then = seal.origin.spec
    yield from spec_differences(_shared(then, now), _shared(now, then))


def _shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without the keys that the other one lacks."""
    return {
        key: _shared(value, other[key]) if isinstance(value, Mapping) and isinstance(other[key], Mapping) else value
        for key, value in one.items()
        if key in other
    }
