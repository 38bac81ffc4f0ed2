"""The report: one self-contained page and the same as plain text; all numbers come from the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.datasets.catalogue import VIDEO_PREFIX, label_of
from driftlab.errors import RequestError, as_typed
from driftlab.platform.core.files import write_atomically
from driftlab.platform.results.claims import base as claims
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, View, view_of
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.figures.searches import SEARCH_FIGURES, SIDE_BY_SIDE, summarise_search
from driftlab.platform.results.figures.svg import VARIABLES, WIDTH, panel
from driftlab.platform.results.figures.table import DETAILS, FIGURES, SUBJECTS
from driftlab.platform.results.isolation import attempt
from driftlab.platform.results.relations.failures import member_failures, symptoms
from driftlab.platform.results.relations.searches import FAILED, SearchResults, is_search
from driftlab.platform.results.relations.tuned import unequal_budgets
from driftlab.platform.results.report import paper_tables
from driftlab.platform.results.report.acts import ACTS, result_of
from driftlab.platform.results.report.clip import Clip, make_clip
from driftlab.platform.results.report.snapshots import Strip, strips
from driftlab.platform.results.report.summary.base import BOUNDS, DASH, MEANINGS, MEASURES
from driftlab.platform.results.report.summary.gains import claims_line, headline
from driftlab.platform.results.report.summary.table import Summary, summarise
from driftlab.platform.results.tables.columns import LIVE_SCORE, SCHEMA_VERSION
from driftlab.platform.results.tables.integrity import warnings_of
from driftlab.platform.results.tables.read import Run, SalvagedTables, open_run
from driftlab.platform.results.tables.run_pair import HEADER, compare_figures, rows_of

if TYPE_CHECKING:
    import jinja2

SHOWN = 4  # panels of a figure; the others are folded
COMPUTED = "computed from the hardware profiles"
TEMPLATES = Path(__file__).parent / "templates"
SHAPES = {"s": "M6 0h8v8h-8z", "^": "M10 0l5 8h-10z", "D": "M10 0l5 4l-5 4l-5-4z", "v": "M5 0h10l-5 8z"}  # of points


@dataclass(frozen=True)
class Section:
    """One figure of a page; its pictures are SVG elements."""

    name: str
    title: str
    note: str
    legend: Mapping[str, Style]
    pictures: list[tuple[str, Mapping[str, Style], str]]  # title, own legend, SVG element
    narrow: bool  # three pictures in a row
    grids: Sequence[Grid]

    @property
    def is_detail(self) -> bool:
        """Return whether the section is folded."""
        return self.name in (*DETAILS, paper_tables.NAME)

    @property
    def is_subject(self) -> bool:
        """Return whether the section is specific to an experiment; the first one is open, others are folded."""
        return self.name in SUBJECTS


@dataclass(frozen=True)
class Page:
    """Everything that a template writes."""

    title: str
    question: str  # summary of the experiment
    health: list[str]  # failures, and signs of systems that did nothing or were late
    summary: Summary
    terms: Mapping[str, str]  # explanations of the words that the page uses
    styles: Mapping[str, Style]
    measure: str  # name of the score
    sections: list[Section]
    clip: Clip | None
    strips: list[Strip]
    failures: list[tuple[str, str]]
    verdicts: list[claims.Verdict]
    reproduced: str  # how many claims
    commands: list[str]
    spec: str
    provenance: list[tuple[str, str]]


def write_report(directory: str | Path, other: str | Path | None = None) -> Path:
    """Write report.html and report.md of a run, compared with another one if given; return the page."""
    run, beside = open_run(directory), None if other is None else open_run(other)
    page = compose_search(run) if is_search(run) else compose(run)
    if beside is not None:
        page = replace(page, sections=[*side_by_side(run, beside), *page.sections])
    write_atomically(run.path / "report.md", _render("report.md.j2", page))
    write_atomically(run.path / "report.html", _render("report.html.j2", page))
    return run.path / "report.html"


def compose(run: Run) -> Page:
    """Compute everything that the report shows."""
    tables = SalvagedTables(run)
    runs = plots.with_settings(tables.frame("runs"), run.info)
    view = view_of(run, tables)
    failed = runs[runs["status"] == "failed"]
    faults = list[str]()
    verdicts = (attempt("The claims", lambda: claims.evaluate(run, tables=tables), faults) or []) if len(runs) else []
    faults += claims.uncomputed(verdicts)
    snapshots, frames, styles = tables.frame("snapshots"), tables.frame("frames"), view.styles
    sections = _sections(view, FIGURES, faults)
    if grids := attempt("The tables of papers", lambda: paper_tables.grids_of(tables), faults):
        sections.append(Section(paper_tables.NAME, paper_tables.TITLE, paper_tables.NOTE, {}, [], False, grids))
    clip = attempt("The clip", lambda: make_clip(runs, snapshots, frames, styles), faults)
    pictures = attempt("The pictures", lambda: strips(runs, snapshots, frames, styles, _video_workloads(run)), faults)
    failures = attempt("Failures of members", lambda: member_failures(tables), faults) or []
    signs = attempt("Signs of systems that do nothing", lambda: symptoms(tables), faults) or []
    summary = summarise(view)
    findings = attempt("The sentence of the act", lambda: _of_act(run, view), faults)
    summary = replace(summary, findings=findings or summary.findings)
    warnings = attempt("The check of the files", lambda: warnings_of(run), faults) or []
    empty = [name for name in tables.unfilled() if name not in tables.faults]
    lost = [f"The table '{name}' is missing from this report: {reason}" for name, reason in tables.faults.items()]
    if len(view.runs) and (gone := [name for name in empty if name in _filled(view)]):
        lost.append(f"Tables that should have rows are empty: {', '.join(gone)}. Parts that need them are left out.")
    health = [*lost, *(one.text for one in failures), *signs, *summary.warnings, *warnings]
    return Page(
        title=str(run.spec.get("name", run.path.name)),
        question=str(run.spec.get("summary") or ""),
        health=[*health, *unequal_budgets(tables), *(f"{fault}." for fault in faults)],
        summary=summary,
        terms=_terms(view),
        styles=view.styles,
        measure=plots.measure(runs),
        sections=sections,
        clip=clip,
        strips=pictures or [],
        failures=list(failed[["cell", "error"]].fillna("no reason recorded").itertuples(index=False, name=None)),
        verdicts=verdicts,
        reproduced=claims_line(verdicts),
        commands=_commands(run, "run"),
        spec=(run.path / "spec.yaml").read_text(encoding="utf-8").strip(),
        provenance=[*_provenance(run), ("tables without rows", ", ".join(empty) or "none")],
    )


def _filled(view: View) -> set[str]:
    """Return the tables that always have rows in a run like this one."""
    frames = {"frames"} if view.runs["frames"].notna().any() else set()
    snapshots = {"snapshots"} if view.tables.run.spec.get("snapshots") and frames else set()
    return {"devices", *frames, *snapshots}


def compose_search(run: Run) -> Page:
    """Compute everything that the report of a search shows."""
    found, faults = SearchResults(run), list[str]()
    sections = _sections(found, SEARCH_FIGURES, faults)
    failed = found.trials[found.trials["status"] == FAILED]
    return Page(
        title=str(run.spec["name"]),
        question=str(run.spec.get("summary") or ""),
        health=faults,
        summary=Summary((), summarise_search(found), ()),
        terms={},
        styles={},
        measure="",
        sections=sections,
        clip=None,
        strips=[],
        failures=[
            (f"trial {number}", reason) for number, reason in zip(failed["trial"], failed["reason"], strict=True)
        ],
        verdicts=[],
        reproduced="",
        commands=_commands(run, "tune"),
        spec=(run.path / "spec.yaml").read_text(encoding="utf-8").strip(),
        provenance=_provenance(run),
    )


def _of_act(run: Run, view: View) -> list[str]:
    """Return the sentence of an act of the demo and a second one; empty if the run is no act."""
    act = ACTS.get(str(run.spec.get("name")).removeprefix("demo-"))
    found = result_of(act, view.tables) if act else None
    if act is None or found is None or found.score is None:
        return []
    return [found.sentence, *headline(view, but=act.baseline.system, known=act.ours.system)]


def _terms(view: View) -> dict[str, str]:
    """Explain the score, the truth and each bound of this run."""
    score, runs = plots.measure(view.runs), view.runs
    grace_s = sorted(set(runs["grace_s"].dropna()))
    grace = f"{grace_s[0]:.2g} s" if len(grace_s) == 1 else "a frame interval"
    found = {}
    if runs[LIVE_SCORE].notna().any():
        found[plots.live_measure(runs)] = (
            f"the score, from 0 to 1: {MEASURES.get(score, score)} over the last 10 s, of the newest prediction that "
            f"was ready when a frame was shown, or {grace} later"
        )
        label = plots.reference_label(runs)
        labels = "the labels of the stream" if label == "truth" else "predictions of a network that makes mistakes"
        found[label] = f"{labels}, which predictions are compared with"
    bounds = runs.dropna(subset=["bound"])[["system", "bound"]].drop_duplicates()
    names = {bound: " and ".join(own["system"]) for bound, own in bounds.groupby("bound")}
    return found | {name: f"a bound, no method: {MEANINGS[bound]}" for bound, name in names.items()}


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


def _section(figure: Figure, data: View | SearchResults | Mapping[str, SearchResults]) -> Section | None:
    part = figure.show(data)
    if part is None:
        return None
    narrow = any(panel.width < WIDTH for panel in part.panels)
    return Section(figure.name, figure.title, part.note, part.legend, _draw(figure, part), narrow, part.grids)


def side_by_side(run: Run, other: Run) -> list[Section]:
    """Compare two searches over compute, or two runs with a note on the origin of their times."""
    if is_search(run) != is_search(other):
        searches = [str(one.path) for one in (run, other) if is_search(one)]
        raise RequestError(f"Only '{searches[0]}' is a search. Compare two searches, or two runs.")
    if is_search(run):
        name, beside = (one.path.name if run.path.name != other.path.name else str(one.path) for one in (run, other))
        section = _section(SIDE_BY_SIDE, {name: SearchResults(run), beside: SearchResults(other)})
        return [section] if section else []
    first, second = run.info.get("times") or COMPUTED, other.info.get("times") or COMPUTED
    found = rows_of(compare_figures(run, other))
    rows = {f"{cell}, {name}": [GridCell(text) for text in texts] for cell, name, *texts in found}
    note = f"Times of the first: {first}. Times of the second, {other.path.name}: {second}."
    grid = Grid("cell and figure", HEADER[2:], rows)
    return [Section("runs", "Two runs side by side", note, {}, [], False, [grid])]


def _draw(figure: Figure, shown: FigureContent) -> list[tuple[str, Mapping[str, Style], str]]:
    return [
        (
            part.title,
            part.legend,
            panel(f"{figure.name}{k}", f"{figure.title}: {part.title}", part.draw, part.height, part.width),
        )
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
    return str(_template(template).render(page=page))


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "dashes": dashes,
        "shape": _shape,
        "short": plots.short,
        "count_results": claims.count_results,
        "format_evidence": claims.format_evidence,
        "format_paper": claims.format_paper,
        "format_value": claims.format_value,
        "format_interval": claims.format_interval,
    }
    names: dict[str, Any] = {"bounds": BOUNDS, "dash": DASH, "variables": VARIABLES}
    names |= {"greys": set(plots.GREYS.values()), "shown": SHOWN}
    return environment.get_template(name, globals=names)


def _shape(style: Style) -> str:
    """Return the marker of a style as an SVG path; empty for the default marker."""
    return SHAPES.get(style.marker, "")


def dashes(style: Style) -> str:
    """Return the dash pattern of a line in SVG notation."""
    return "none" if style.dash == "-" else " ".join(f"{2 * part:g}" for part in style.dash[1])
