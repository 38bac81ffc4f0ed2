"""Select the cells that a run must compute; finished cells are kept if spec and code versions match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError, as_typed, quoted
from driftlab.platform.core.plugins import code_digest, drop_folder
from driftlab.platform.lab.cells import cells_of, resolved
from driftlab.platform.lab.read import Experiment
from driftlab.platform.networks.training.artifacts import version_of
from driftlab.platform.results.tables.diff import spec_differences
from driftlab.platform.results.tables.origin import Origin, cell_spec, seal_of
from driftlab.platform.results.tables.recorder import FAILED, files_of, reason_to_repeat, table_file
from driftlab.platform.results.tables.schema import TABLES
from driftlab.platform.sim import rounds
from driftlab.platform.sim.setting import Cell

DIFFERENCES_SHOWN = 5
REPLACED = "replaced"  # in a run folder: the last files of cells that ran again


@dataclass(frozen=True)
class Plan:
    """Cells to compute, cells to keep, and the reasons for repeated cells."""

    todo: tuple[Cell, ...]
    kept: frozenset[str]
    again: Mapping[str, Sequence[str]]  # reason -> cells
    origins: Mapping[str, Origin]  # by cell


def plan_of(experiment: Experiment, directory: Path) -> Plan:
    """Compare a folder's tables with its spec; RequestError if the spec was edited after cells finished."""
    cells, tables = cells_of(experiment), directory / "tables"
    origins = origins_of(experiment, cells)
    for table in TABLES:
        files_of(tables, table)  # refuses a file in the place of a table's folder
    _refuse_foreign(tables, cells)
    kept, again, edited = set(), dict[str, list[str]](), dict[str, None]()
    for cell in cells:
        file = table_file(tables, "runs", cell.id)
        if not file.exists():
            continue
        reason = reason_to_repeat(tables, cell.id) or _other_versions(file, origins[cell.id])
        if reason is None:
            kept.add(cell.id)
            edited.update(dict.fromkeys(_edited(file, origins[cell.id])))
        elif reason != FAILED:
            again.setdefault(reason, []).append(cell.id)
    if edited:
        _refuse_edited(directory, list(edited))
    return Plan(tuple(cell for cell in cells if cell.id not in kept), frozenset(kept), again, origins)


def keep_replaced(directory: Path, cells: Sequence[str]) -> None:
    """Move the files of cells that run again to the folder `replaced`."""
    for cell in cells:
        for table in TABLES:
            file = table_file(directory / "tables", table, cell)
            if file.exists():
                target = directory / REPLACED / table / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)


def origins_of(experiment: Experiment, cells: Sequence[Cell]) -> dict[str, Origin]:
    """Return the spec and the code versions that determine each cell's rows."""
    spec, versions = resolved(experiment), {name: version_of(name) for name in ("driftlab", "torch")}
    parts = [app.network for workload in experiment.workloads for app in workload.apps]
    networks = {
        name: code_digest(name) for name in (experiment.student.network, experiment.teacher.network, *parts) if name
    }
    found = {}
    for cell in cells:
        code = {member.name: code_digest(member.name) for member in cell.system.members}
        own: dict[str, Any] = {drop_folder(name): digest for name, digest in code.items() if digest}
        own |= {f"{one.family}/{drop_folder(one.name)}": one.version for one in cell.system.members if one.version > 1}
        own |= {"loop/rounds": rounds.VERSION} if cell.system.trains_several else {}
        own |= {drop_folder(name): digest for name, digest in networks.items() if digest}
        narrowed = cell_spec(spec, cell.system.name, cell.workload, cell.fleet, cell.seed)
        found[cell.id] = Origin(narrowed, {**versions, **own})
    return found


def _other_versions(file: Path, origin: Origin) -> str | None:
    """Describe the other code that computed a cell's rows; None if it is the same."""
    seal = seal_of(file)
    if seal is None or seal.origin is None:
        return "the code and settings of its rows are not recorded"
    then, now = seal.origin.versions, origin.versions
    changed = [
        f"{name} was {str(then.get(name))[:12]}, now {str(now.get(name))[:12]}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    return f"other code computed its rows: {', '.join(changed)}" if changed else None


def _edited(file: Path, origin: Origin) -> Iterator[str]:
    seal = seal_of(file)
    if seal is not None and seal.origin is not None and seal.origin.digest != origin.digest:
        yield from spec_differences(seal.origin.spec, origin.spec)


def _refuse_edited(directory: Path, lines: Sequence[str]) -> None:
    more = f"\n  - and {len(lines) - DIFFERENCES_SHOWN} more" if len(lines) > DIFFERENCES_SHOWN else ""
    shown = "".join(f"\n  - {line}" for line in lines[:DIFFERENCES_SHOWN])
    raise RequestError(
        f"'{directory / 'spec.yaml'}' differs from the spec of the finished cells (then vs now):{shown}{more}\n"
        "Put the old values back to continue, or start a new run: "
        f"{as_typed('driftlab', 'run', directory / 'spec.yaml')} --out FOLDER."
    )


def _refuse_foreign(tables: Path, cells: Sequence[Cell]) -> None:
    """Refuse files of cells that the spec does not list; a report would include them."""
    known = {table_file(tables, "runs", cell.id).name for cell in cells}
    foreign = sorted(file.name for file in files_of(tables, "runs") if file.name not in known)
    if foreign:
        raise RequestError(
            f"'{tables / 'runs'}' holds {len(foreign)} files of cells that spec.yaml does not list "
            f"({quoted(foreign)}). Undo the changes in spec.yaml, or move these files away."
        )
