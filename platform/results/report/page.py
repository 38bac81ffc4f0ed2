"""The report: one self-contained page and the same as plain text; all numbers come from the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from driftlab.datasets.catalogue import VIDEO_PREFIX, label_of
from driftlab.errors import as_typed
from driftlab.platform.core.files import write_atomically
from driftlab.platform.results.claims import base as claims
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, View, view_of
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.figures.searches import SEARCH_FIGURES, summarise_search
from driftlab.platform.results.figures.svg import VARIABLES, panel
from driftlab.platform.results.figures.table import FIGURES
from driftlab.platform.results.isolation import attempt
from driftlab.platform.results.relations.failures import member_failures
from driftlab.platform.results.relations.searches import FAILED, SearchResults, is_search
from driftlab.platform.results.relations.tuned import unequal_budgets
from driftlab.platform.results.report import paper_tables
from driftlab.platform.results.report.snapshots import Strip, strips
from driftlab.platform.results.report.summary.base import BOUNDS, DASH
from driftlab.platform.results.report.summary.table import Summary, summarise
from driftlab.platform.results.report.video import Video, make_video
from driftlab.platform.results.tables.columns import SCHEMA_VERSION
from driftlab.platform.results.tables.integrity import warnings_of
from driftlab.platform.results.tables.read import Run, Tables, open_run
from driftlab.platform.results.tables.run_pair import HEADER, compare_figures, rows_of

COMPUTED = "computed from the hardware profiles"
TEMPLATES = Path(__file__).parent / "templates"
SHAPES = {"s": "M6 0h8v8h-8z", "^": "M10 0l5 8h-10z", "D": "M10 0l5 4l-5 4l-5-4z", "v": "M5 0h10l-5 8z"}  # of points


@dataclass(frozen=True)
class Section:
    """One figure of a page; its pictures are SVG elements."""

    title: str
    note: str
    legend: Mapping[str, Style]
    pictures: list[tuple[str, Mapping[str, Style], str]]  # title, own legend, SVG element
    grids: Sequence[Grid]


@dataclass(frozen=True)
class Page:
    """Everything that a template writes."""

    title: str
    question: str  # summary of the experiment
    warnings: list[str]
    summary: Summary
    styles: Mapping[str, Style]
    measure: str  # name of the score
    sections: list[Section]
    video: Video | None
    strips: list[Strip]
    failures: list[tuple[str, str]]
    verdicts: list[claims.Verdict]
    commands: list[str]
    spec: str
    provenance: list[tuple[str, str]]


def write_report(directory: str | Path, other: str | Path | None = None) -> Path:
    """Write report.html and report.md of a run, compared with another one if given; return the page."""
    run = open_run(directory)
    page = compose_search(run) if is_search(run) else compose(run)
    if other is not None:
        page = replace(page, sections=[side_by_side(run, open_run(other)), *page.sections])
    write_atomically(run.path / "report.md", _render("report.md.j2", page))
    write_atomically(run.path / "report.html", _render("report.html.j2", page))
    return run.path / "report.html"


def compose(run: Run) -> Page:
    """Compute everything that the report shows."""
    tables = Tables(run)
    runs = plots.with_settings(tables.frame("runs"), run.info)
    view = view_of(run, tables)
    failed = runs[runs["status"] == "failed"]
    verdicts = claims.evaluate(run, tables=tables) if len(runs) else []
    faults = claims.uncomputed(verdicts)
    snapshots, frames, styles = tables.frame("snapshots"), tables.frame("frames"), view.styles
    sections = _sections(view, FIGURES, faults)
    if grids := attempt("The tables of papers", lambda: paper_tables.grids_of(tables), faults):
        sections.append(Section(title=paper_tables.TITLE, note=paper_tables.NOTE, legend={}, pictures=[], grids=grids))
    video = attempt("The video", lambda: make_video(runs, snapshots, frames, styles), faults)
    pictures = attempt("The pictures", lambda: strips(runs, snapshots, frames, styles, _video_workloads(run)), faults)
    failures = [one.text for one in member_failures(tables)]
    return Page(
        title=str(run.spec.get("name", run.path.name)),
        question=str(run.spec.get("summary") or ""),
        warnings=[*failures, *warnings_of(run), *unequal_budgets(tables), *faults],
        summary=summarise(view, verdicts),
        styles=view.styles,
        measure=plots.measure(runs),
        sections=sections,
        video=video,
        strips=pictures or [],
        failures=list(failed[["cell", "error"]].fillna("no reason recorded").itertuples(index=False, name=None)),
        verdicts=verdicts,
        commands=_commands(run, "run"),
        spec=(run.path / "spec.yaml").read_text(encoding="utf-8").strip(),
        provenance=_provenance(run),
    )


def compose_search(run: Run) -> Page:
    """Compute everything that the report of a search shows."""
    found, faults = SearchResults(run), list[str]()
    sections = _sections(found, SEARCH_FIGURES, faults)
    failed = found.trials[found.trials["status"] == FAILED]
    return Page(
        title=str(run.spec["name"]),
        question=str(run.spec.get("summary") or ""),
        warnings=faults,
        summary=Summary((), summarise_search(found), ()),
        styles={},
        measure="",
        sections=sections,
        video=None,
        strips=[],
        failures=[
            (f"trial {number}", reason) for number, reason in zip(failed["trial"], failed["reason"], strict=True)
        ],
        verdicts=[],
        commands=_commands(run, "tune"),
        spec=(run.path / "spec.yaml").read_text(encoding="utf-8").strip(),
        provenance=_provenance(run),
    )


def _video_workloads(run: Run) -> set[str]:
    """Return the workloads whose first application has a video file, whose classes have no names here."""
    streams = {
        part.get("alias") or label_of(part["name"]): str((part.get("apps") or [{}])[0].get("workload") or part["name"])
        for part in run.spec.get("workloads", ())
    }
    return {name for name, stream in streams.items() if stream.startswith(VIDEO_PREFIX)}


def _sections(data: View | SearchResults, figures: Sequence[Figure], faults: list[str]) -> list[Section]:
    """Draw every figure that this run has data for; one that raises an exception adds a line to `faults`."""
    found = [attempt(f"Figure '{figure.title}'", partial(_section, figure, data), faults) for figure in figures]
    return [section for section in found if section is not None]


def _section(figure: Figure, data: View | SearchResults) -> Section | None:
    part = figure.show(data)
    return None if part is None else Section(figure.title, part.note, part.legend, _draw(figure, part), part.grids)


def side_by_side(run: Run, other: Run) -> Section:
    """Compare the figures of two runs, with a note on the origin of their times."""
    first, second = run.info.get("times") or COMPUTED, other.info.get("times") or COMPUTED
    found = rows_of(compare_figures(run, other))
    rows = {f"{cell}, {name}": [GridCell(text) for text in texts] for cell, name, *texts in found}
    note = f"Times of the first: {first}. Times of the second, {other.path.name}: {second}."
    return Section("Two runs side by side", note, {}, [], [Grid("cell and figure", HEADER[2:], rows)])


def _draw(figure: Figure, shown: FigureContent) -> list[tuple[str, Mapping[str, Style], str]]:
    return [
        (part.title, part.legend, panel(f"{figure.name}{k}", f"{figure.title}: {part.title}", part.height, part.draw))
        for k, part in enumerate(shown.panels)
    ]


def _commands(run: Run, command: str) -> list[str]:
    """List the command that started the run, if recorded, and the one that repeats it exactly."""
    typed = run.info.get("command")
    started_by = typed if isinstance(typed, str) else as_typed(*typed) if typed else ""
    return [line for line in (started_by, as_typed("driftlab", command, run.path / "spec.yaml")) if line]


def _provenance(run: Run) -> list[tuple[str, str]]:
    rows = [(key.replace("_", " "), _plain(value)) for key, value in run.info.items() if key != "command"]
    return [*rows, ("schema of the tables", ", ".join(run.versions() or [SCHEMA_VERSION]))]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return DASH if value is None else str(value)


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
        "dashes": _dashes,
        "shape": _shape,
        "count_results": claims.count_results,
        "format_evidence": claims.format_evidence,
        "format_paper": claims.format_paper,
        "format_value": claims.format_value,
        "format_interval": claims.format_interval,
    }
    return environment.get_template(template).render(page=page, bounds=BOUNDS, dash=DASH, variables=VARIABLES)


def _shape(style: Style) -> str:
    """Return the marker of a style as an SVG path; empty for the default marker."""
    return SHAPES.get(style.marker, "")


def _dashes(style: Style) -> str:
    """Return the dash pattern of a line in SVG notation."""
    return "none" if style.dash == "-" else " ".join(f"{2 * part:g}" for part in style.dash[1])
