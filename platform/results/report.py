"""The report: one page that opens anywhere, and the same as plain text. Every number in it comes from the tables."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.platform.results import plots, summary
from driftlab.platform.results.claims import base as claims
from driftlab.platform.results.pictures import Strip, strips
from driftlab.platform.results.plots import Style
from driftlab.platform.results.read import Run, Tables, open_run
from driftlab.platform.results.schema import SCHEMA_VERSION
from driftlab.platform.results.svg import VARIABLES, panel

if TYPE_CHECKING:
    import pandas as pd

TEMPLATES = Path(__file__).parent / "templates"
ROW = 28  # pixels per system in a plot with one row each


@dataclass(frozen=True)
class Panels:
    """The plots of one setting."""

    setting: str
    accuracy: str
    scores: str
    traffic: str


@dataclass(frozen=True)
class Page:
    """Everything that a template writes."""

    title: str
    subtitle: str
    words: list[str]
    looks: Mapping[str, Style]
    lines: list[summary.Line]
    panels: list[Panels]
    strips: list[Strip]
    failures: list[tuple[str, str]]
    verdicts: list[claims.Verdict]
    commands: list[str]
    spec: str
    provenance: list[tuple[str, str]]


def write_report(directory: str | Path) -> Path:
    """Write report.html and report.md into a run folder and return the path of the page."""
    run = open_run(directory)
    page = compose(run)
    _write(run.path / "report.md", _render("report.md.j2", page))
    return _write(run.path / "report.html", _render("report.html.j2", page))


def compose(run: Run) -> Page:
    """Compute everything that the report shows."""
    tables = Tables(run)
    runs = plots.with_settings(tables.frame("runs"))
    looks = plots.styles(runs, [_name(system) for system in run.spec.get("systems", ())])
    lines = summary.lines(runs, looks)
    failed = runs[runs["status"] == "failed"]
    return Page(
        title=str(run.spec.get("name", run.path.name)),
        subtitle=str(run.spec.get("summary") or ""),
        words=summary.in_words(runs, lines),
        looks=looks,
        lines=lines,
        panels=_panels(runs, tables.frame("frames"), looks),
        strips=strips(runs, tables.frame("pictures"), tables.frame("frames"), looks),
        failures=list(failed[["cell", "error"]].fillna("no reason recorded").itertuples(index=False, name=None)),
        verdicts=claims.evaluate(run, tables=tables) if len(runs) else [],
        commands=_commands(run),
        spec=(run.path / "spec.yaml").read_text(encoding="utf-8").strip(),
        provenance=_provenance(run),
    )


def _name(system: Any) -> str:
    """Name a system of the spec, which is a name or a mapping that holds one."""
    return str(system.get("name", "")) if isinstance(system, Mapping) else str(system)


def _panels(runs: pd.DataFrame, frames: pd.DataFrame, looks: Mapping[str, Style]) -> list[Panels]:
    """Draw each setting on the same scale, so that panels can be compared."""
    low, high = frames["miou_window"].min(), frames["miou_window"].max()
    limits = None if math.isnan(low) else (math.floor(low * 10) / 10, math.floor(high * 10 + 1) / 10)
    done = runs[runs["status"] == "done"]
    return [
        _panel(f"p{k}", setting, done[done["setting"] == setting], frames, looks, limits)
        for k, setting in enumerate(sorted(set(done["setting"])))
    ]


def _panel(
    key: str,
    setting: str,
    runs: pd.DataFrame,
    frames: pd.DataFrame,
    looks: Mapping[str, Style],
    limits: tuple[float, float] | None,
) -> Panels:
    present = {name: look for name, look in looks.items() if name in set(runs["system"])}
    here = frames[frames["cell"].isin(set(runs["cell"]))]

    def accuracy(axis: Any) -> None:
        plots.accuracy(axis, runs, here, present)
        if limits:
            axis.set_ylim(*limits)

    rows = 46 + ROW * len(present)
    known = bool(here["miou_window"].notna().any())
    return Panels(
        setting=setting,
        accuracy=panel(f"{key}a", f"Accuracy over time on {setting}", 236, accuracy) if known else "",
        scores=panel(f"{key}s", f"Scores on {setting}", rows, lambda axis: plots.scores(axis, runs, present))
        if runs["score"].notna().any()
        else "",
        traffic=panel(f"{key}t", f"Traffic on {setting}", rows, lambda axis: plots.traffic(axis, runs, present)),
    )


def _commands(run: Run) -> list[str]:
    """Write what was typed, where it is known, and what repeats exactly this run."""
    typed = run.info.get("command")
    words = typed if isinstance(typed, str) else shlex.join(map(str, typed)) if typed else ""
    return [line for line in (words, shlex.join(["driftlab", "run", str(run.path / "spec.yaml")])) if line]


def _provenance(run: Run) -> list[tuple[str, str]]:
    rows = [(key.replace("_", " "), _plain(value)) for key, value in run.info.items() if key != "command"]
    return [*rows, ("schema of the tables", str(SCHEMA_VERSION))]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return summary.DASH if value is None else str(value)


def _render(template: str, page: Page) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "score": summary.score,
        "signed": summary.signed,
        "span": summary.span,
        "number": summary.number,
        "dashes": _dashes,
        "of_paper": claims.of_paper,
        "of_ours": claims.of_ours,
        "of_span": claims.of_span,
    }
    return environment.get_template(template).render(
        page=page, bounds=summary.BOUNDS, dash=summary.DASH, variables=VARIABLES
    )


def _dashes(look: Style) -> str:
    """Write a line's dash as SVG has it."""
    return "none" if look.dash == "-" else " ".join(f"{2 * part:g}" for part in look.dash[1])


def _write(file: Path, text: str) -> Path:
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)
    return file
