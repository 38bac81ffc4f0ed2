"""Read the folders of many runs into rows of the board; a damaged one has its fault as a note."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.errors import DriftlabError, first_line
from driftlab.platform.results import stats
from driftlab.platform.results.isolation import describe
from driftlab.platform.results.relations.searches import BEST, DEFAULTS, SEARCH, SearchResults, is_search
from driftlab.platform.results.relations.time_series import average_scores
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.integrity import warnings_of
from driftlab.platform.results.tables.read import SEARCHES, Run, open_run, read_request
from driftlab.platform.results.tables.recorder import read_file, table_file

if TYPE_CHECKING:
    import pandas as pd

DEPTH = 3  # levels of folders below the given one
POINTS = 60  # of a curve
PARTS = ("spec.yaml", "run.json", "tables")  # any of them makes a folder a run
CURVE = ("cell", "time_s", LIVE_SCORE)
COSTS = ("uplink_kbps", "downlink_kbps", "energy_j", "updates")
AXES = ("workloads", "fleets", "seeds")  # of an experiment, next to its systems
DIGITS = 4  # of numbers on the page


@dataclass(frozen=True)
class BoardRow:
    """One run on the board."""

    name: str  # path below the given folder
    report: str = ""  # address of its report, relative to the page; empty without one
    experiment: str = ""
    summary: str = ""
    started: str = ""
    health: str = "complete"  # or warned, unfinished, failed, damaged
    notes: list[str] = field(default_factory=list)
    cells: tuple[int, int, int] = (0, 0, 0)  # done, failed, and all of the experiment; trials of a search
    systems: list[dict[str, Any]] = field(default_factory=list)
    search: dict[str, Any] | None = None


def entries_of(folder: Path, page: Path) -> list[BoardRow]:
    """Read every run below a folder, the newest first; `page` is the file that links to the reports."""
    found = [_entry(run, folder, page) for run in run_folders(folder)]
    return sorted(found, key=lambda one: (one.started, one.name), reverse=True)


def run_folders(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the run folders below a folder; one that lists searches is replaced by the searches in it."""
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        if is_run_folder(path):
            yield path
        elif depth > 1:
            yield from run_folders(path, depth - 1)


def is_run_folder(path: Path) -> bool:
    """Return whether a folder holds a run, perhaps a damaged one, and not a list of searches."""
    if not any((path / part).exists() for part in PARTS):
        return False
    try:
        return SEARCHES not in read_request(path)
    except DriftlabError:
        return True  # its entry states the fault


def _entry(path: Path, folder: Path, page: Path) -> BoardRow:
    name, report = str(path.relative_to(folder)), path / "report.html"
    link = Path(os.path.relpath(report, page.parent)).as_posix() if report.is_file() else ""
    try:
        run = open_run(path)
        shared: dict[str, Any] = {
            "report": link,
            "experiment": str(run.spec.get("name", "")),
            "summary": str(run.spec.get("summary") or ""),
            "started": str(run.info.get("started") or ""),
        }
        return BoardRow(name, **shared, **(_search(run) if is_search(run) else _cells(run)))
    except DriftlabError as error:
        return BoardRow(name, link, health="damaged", notes=[first_line(error)])
    except Exception as error:  # any content of a folder: other runs must be shown
        return BoardRow(name, link, health="damaged", notes=[describe(error)])


def _cells(run: Run) -> dict[str, Any]:
    """Return the fields of a run: its systems, the number of its cells, and its faults."""
    runs = run.frame("runs")
    failed = runs[runs["status"] != "done"]
    rows = [*run.spec.get("systems", ()), *(run.spec.get("bound_rows") or ())]
    planned = math.prod(len(part) for part in (rows, *(run.spec.get(key) or [1] for key in AXES)))
    done = len(runs) - len(failed)
    notes = [f"{row.cell} failed: {row.error or 'no reason recorded'}" for row in failed.head(1).itertuples()]
    if len(runs) < planned:
        notes.append(f"{planned - len(runs)} of {planned} cells have no result yet.")
    warnings = warnings_of(run)
    health = "failed" if len(failed) else "unfinished" if len(runs) < planned else "warned" if warnings else "complete"
    names = [row["name"] for row in rows]
    return {
        "health": health,
        "notes": [*notes, *warnings],
        "cells": (done, len(failed), planned),
        "systems": _systems(run, runs[runs["status"] == "done"], names),
    }


def _systems(run: Run, runs: pd.DataFrame, names: list[str]) -> list[dict[str, Any]]:
    """List the systems in the order of their names, with mean score, costs and score over time."""
    if runs.empty:
        return []
    bounds = runs["bound"].notna().groupby(runs["system"]).any()
    scores = stats.means(runs, ["system"], LIVE_SCORE, least=0.0, most=1.0).set_index("system")
    costs = runs.groupby("system")[list(COSTS)].mean()
    curves = _curves(run, runs)
    return [
        {
            "name": name,
            "bound": bool(bounds[name]),
            "seeds": int(runs.loc[runs["system"] == name, "seed"].nunique()),
            "score": _plain(scores["mean"].get(name)),
            "low": _plain(scores["low"].get(name)),
            "high": _plain(scores["high"].get(name)),
            **{cost: _plain(costs.at[name, cost]) for cost in COSTS},
            "curve": curves.get(name, []),
        }
        for name in dict.fromkeys([*names, *runs["system"]])
        if name in bounds
    ]


def _curves(run: Run, runs: pd.DataFrame) -> Mapping[str, list[tuple[float | None, float | None]]]:
    """Average the live scores over seeds, workloads and applications by system and time."""
    import pyarrow as pa

    tables = run.path / "tables"
    files = [table_file(tables, "frames", cell) for cell in runs["cell"]]
    parts = [read_file(file, "frames", CURVE) for file in files if file.is_file()]
    if not parts:
        return {}
    found = average_scores(runs, pa.concat_tables(parts).to_pandas(), POINTS)
    means = found.groupby(["system", "bin"])[["time_s", LIVE_SCORE]].mean()
    return {
        str(system): [(_plain(time_s), _plain(score)) for time_s, score in part.itertuples(index=False)]
        for system, part in means.groupby("system")
    }


def _search(run: Run) -> dict[str, Any]:
    """Return the fields of a search: its trials with the first objective, and those on held-out seeds."""
    found = SearchResults(run)
    first, budget = found.objectives[0], found.budget
    planned = int(run.spec["trials"])
    notes = [f"{budget.failed} of {budget.trials} trials failed."] if budget.failed else []
    if budget.trials < planned:
        notes.append(f"{planned - budget.trials} of {planned} trials have no result yet.")
    rows = found.trials.to_dict("records")
    trials = [
        (row["trial"], _plain(row[first.metric]), row["status"], _settings(row["settings"]))
        for row in rows
        if row["stage"] == SEARCH
    ]
    held_out = {row["stage"]: _plain(row[first.metric]) for row in rows if row["stage"] in (BEST, DEFAULTS)}
    search = {
        "metric": first.metric,
        "better": first.better,
        "trials": trials,
        "held_out": held_out,
        "best": None if found.best is None else found.best.number,
    }
    health = "failed" if budget.failed else "unfinished" if budget.trials < planned else "complete"
    cells = (budget.trials - budget.failed, budget.failed, planned)
    return {"health": health, "notes": notes, "cells": cells, "search": search}


def _settings(text: str) -> str:
    """Write the settings of a trial with the last part of their paths."""
    values: Mapping[str, Any] = json.loads(text)
    return ", ".join(f"{path.rpartition('.')[2]} {_plain(value)}" for path, value in values.items())


def _plain(value: Any) -> Any:
    """Round a number to `DIGITS` significant digits; None for a missing one."""
    if not isinstance(value, float):
        return None if value is None else value.item() if hasattr(value, "item") else value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
