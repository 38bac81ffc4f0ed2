"""Figures of a search: Pareto front, progress, parallel coordinates, importance, budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.errors import RequestError
from driftlab.platform.core.space import Trial
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel
from driftlab.platform.results.figures.plots import COLOURS, QUIET, RULE, Style
from driftlab.platform.results.relations.searches import DONE, FAILED, FEWEST, HeldOut, SearchResults, importance
from driftlab.platform.results.tables.search import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREEN = COLOURS[0], COLOURS[1], COLOURS[2]
LEADING_SHARE = 0.25  # of the trials, drawn as the best ones
ROW = 22  # pixels of a bar
DASH = "–"
STREAMED = "streamed, s"  # the compute of a search


def held_out(found: SearchResults) -> FigureContent | None:
    """Compare the best settings of the search with the defaults on held-out seeds."""
    rows = found.held_out()
    if all(row.defaults is None for row in rows):
        return None
    grid = Grid(
        "held-out seeds",
        ("best trial", "defaults", "difference", "verdict"),
        {f"{row.metric} ({row.better})": _compared(row) for row in rows},
    )
    note = (
        "Settings of the best trial and defaults on seeds that the search did not use; paired differences with 95 % CI "
        "over seeds. The best of many trials scores lower on other seeds than in the search (selection bias): only "
        "this table measures the gain of the search."
    )
    return FigureContent(note, grids=[grid])


def front(found: SearchResults) -> FigureContent | None:
    """Draw each further objective over the first one, and list the Pareto-optimal trials."""
    leading = sorted(found.front, key=lambda trial: trial.losses(found.problem))
    if not leading:
        return None
    first, *others = found.objectives
    panels = [
        Panel(f"{other.metric} over {first.metric}", partial(_front, found, leading, other.metric)) for other in others
    ]
    columns = [one.metric for one in found.objectives]
    settings = list(found.space.domains)
    rows = {
        f"trial {trial.number}": [
            *(GridCell(_number((trial.metrics or {})[name])) for name in columns),
            *(GridCell(_value(trial.settings.get(path))) for path in settings),
        ]
        for trial in leading
    }
    grid = Grid("trial", [*columns, *map(_short, settings)], rows)
    legend = {"Pareto-optimal": Style(BLUE), "dominated": Style(QUIET), "defaults": Style(RED)} if panels else {}
    return FigureContent(_front_note(found), panels, [grid], legend)


def progress(found: SearchResults) -> FigureContent | None:
    """Draw the first objective over the trial number and over the compute, and the best value so far."""
    if not found.full:
        return None
    first = found.objectives[0].metric
    legend = {"trial": Style(QUIET), "best so far": Style(BLUE)}
    note = (
        "First objective of every trial in the order of proposals. Line: best so far that satisfies the constraints. "
        "Compute: video length that this trial and the earlier ones have streamed. Hollow: stopped early."
    )
    trials = _by_trial(found)
    panels = [
        Panel(f"{first} by trial", partial(_progress, found, trials, "trial")),
        Panel(f"{first} by compute", partial(_progress, found, _compute(found), STREAMED)),
    ]
    return FigureContent(note, panels, legend=legend)


def parallel(found: SearchResults) -> FigureContent | None:
    """List the domains; draw every trial as a line over its settings, each on the scale of its domain."""
    if not found.full:
        return None
    inside = [trial for trial in found.full if found.space.positions(trial.settings) is not None]
    note = (
        "One line per trial. Each axis is one setting over its domain; the last axis is "
        f"{found.objectives[0].metric}, better at the top. Coloured: best quarter of the trials."
    )
    legend = {"best quarter": Style(BLUE), "other trials": Style(RULE)}
    if len(inside) < 2:
        return FigureContent("Domains of the search. Lines need at least two trials.", grids=[_domains(found)])
    panel = Panel("settings of all trials", partial(_parallel, found, inside), 300)
    return FigureContent(note, [panel], [_domains(found)], legend)


def _domains(found: SearchResults) -> Grid:
    """List the domain, the default and the recommended value of each setting."""
    sides = [
        next((one.settings for one in found.full if one.number == 0), {}),
        found.recommended.settings if found.recommended else {},
    ]
    rows = {
        _short(path): [GridCell(str(domain)), *(GridCell(_value(side.get(path, DASH))) for side in sides)]
        for path, domain in found.space.domains.items()
    }
    return Grid("setting", ("domain", "defaults", "recommended"), rows)


def explained_variance(found: SearchResults) -> FigureContent | None:
    """Draw the share of the variance of each objective that each setting explains."""
    shares = {one.metric: importance(found.full, found.space, one.metric) for one in found.objectives}
    shares = {metric: each for metric, each in shares.items() if each}
    if not shares:
        return None
    panels = [
        Panel(metric, partial(_bars, {_short(path): share for path, share in each.items()}), 60 + ROW * len(each))
        for metric, each in shares.items()
    ]
    note = (
        "Share of the variance over trials that each setting explains without the others: adjusted R² of a quadratic "
        "fit, or of one mean per category. Interactions of settings are not included. "
        f"At least {FEWEST} trials are needed."
    )
    return FigureContent(note, panels)


def budget(found: SearchResults) -> FigureContent | None:
    """Tabulate the budget that the search has spent."""
    spent = found.budget
    cells = {
        "trials": _ended(found),
        "failed": str(spent.failed),
        "stopped early": str(spent.stopped),
        "streamed": f"{spent.streamed_s:.0f} s",
        "time of one core": f"{spent.host_seconds:.0f} s",
        "seeds": ", ".join(map(str, found.spec["seeds"])),
        "held-out seeds": ", ".join(map(str, found.spec["held_out"])) or DASH,
    }
    note = "Streamed: total video length over all devices and trials. Compare only systems tuned with equal budgets."
    return FigureContent(
        note, grids=[Grid("budget", list(cells), {str(found.spec["system"]): [*map(GridCell, cells.values())]})]
    )


def compared(searches: Mapping[str, SearchResults]) -> FigureContent | None:
    """Draw the best value so far over the compute of several searches with the same first objective."""
    first, *others = [found.objectives[0] for found in searches.values()]
    if any(other != first for other in others):
        stated = " and ".join(f"{one.metric} ({one.better})" for one in (first, *others))
        raise RequestError(
            f"The first objectives of these searches differ: {stated}. Compare searches with the same one."
        )
    shown = {name: found for name, found in searches.items() if found.best}
    if not shown:
        return None
    whole = max(found.budget.streamed_s for found in shown.values())
    grid = Grid(
        "search",
        (
            "trials",
            "stopped early",
            STREAMED,
            "of the most",
            "until the best",
            f"best {first.metric}",
            "on held-out seeds",
        ),
        {name: _spent(found, whole) for name, found in shown.items()},
    )
    note = (
        "Best value so far over the compute of each search. Compute: video length that all trials up to this one have "
        "streamed, also stopped ones; runs on held-out seeds do not count. Only held-out seeds measure a gain."
    )
    legend = {name: Style(COLOURS[k % len(COLOURS)]) for k, name in enumerate(shown)}
    panel = Panel(f"{first.metric} by compute", partial(_best_by_compute, shown, legend))
    return FigureContent(note, [panel], [grid], legend)


def _spent(found: SearchResults, whole_s: float) -> list[GridCell]:
    """Return the budget of a search, the compute until its best trial, and its score."""
    best, spent = found.best, found.budget
    assert best is not None
    first = found.objectives[0].metric
    (held,) = (row.best if row.best is not None else row.defaults for row in found.held_out() if row.metric == first)
    texts = (
        _ended(found),
        str(spent.stopped),
        f"{spent.streamed_s:.0f}",
        f"{spent.streamed_s / whole_s:.0%}",
        f"{_compute(found)[best.number]:.0f}",
        _number((best.metrics or {})[first]),
        DASH if held is None else _number(held),
    )
    return [GridCell(text) for text in texts]


SEARCH_FIGURES: Sequence[Figure] = (
    Figure("held_out", "Held-out seeds", held_out),
    Figure("front", "Pareto front", front),
    Figure("progress", "Progress", progress),
    Figure("parallel", "Settings", parallel),
    Figure("importance", "Importance of settings", explained_variance),
    Figure("budget", "Budget", budget),
)
SIDE_BY_SIDE = Figure("searches", "Searches side by side", compared)  # of several, by name


def summarise_search(found: SearchResults) -> list[str]:
    """Summarise the search and its result in a few sentences."""
    spent, spec, best = found.budget, found.spec, found.best
    sentences = [
        f"{_ended(found)} trials of {spec['system']} by {spec['searcher']}, {spent.failed} failed and {spent.stopped} "
        f"stopped early, on seeds {', '.join(map(str, spec['seeds']))}."
    ]
    if best is None:
        return [*sentences, "No trial completed, so no settings are recommended."]
    first = found.objectives[0].metric
    sentences.append(f"Trial {best.number} is the best: {first} {_number((best.metrics or {})[first])}.")
    if best.number == 0:
        sentences.append("Its settings are the defaults: no other trial is better.")
    elif found.supported:
        sentences.append("Its settings are recommended.")
    else:
        sentences.append("Held-out seeds do not show that it is better, so the defaults are recommended.")
    if not found.feasible:
        sentences.append("No trial satisfies all constraints; this one has the smallest violation.")
    return [*sentences, *(_held_out_sentence(row) for row in found.held_out() if row.difference is not None)]


def _ended(found: SearchResults) -> str:
    """Return the number of trials, with the requested number if the search is incomplete."""
    ended, requested = found.budget.trials, found.spec["trials"]
    return str(ended) if ended == requested else f"{ended} of {requested}"


def _held_out_sentence(row: HeldOut) -> str:
    comparison = {"better": "better than", "worse": "worse than", "inconclusive": "not significantly different from"}[
        row.verdict
    ]
    return f"On held-out seeds its {row.metric} is {comparison} that of the defaults: {_difference(row)}."


def _difference(row: HeldOut) -> str:
    if row.difference is None:
        return DASH
    mean, low, high, _ = row.difference
    span = "" if low is None or high is None else f" ({_number(low)} to {_number(high)})"
    return f"{_number(mean)}{span}"


def _compared(row: HeldOut) -> list[GridCell]:
    values = [GridCell(DASH if value is None else _number(value)) for value in (row.best, row.defaults)]
    return [*values, GridCell(_difference(row)), GridCell(row.verdict, strong=row.verdict != "inconclusive")]


def _front_note(found: SearchResults) -> str:
    bounds = f" among those that satisfy {' and '.join(found.spec['constraints'])}" if found.spec["constraints"] else ""
    several = "in every objective" if len(found.objectives) > 1 else f"in {found.objectives[0].metric}"
    return f"Trials that no other trial dominates {several}{bounds}. Trial 0 has the defaults."


def _front(found: SearchResults, leading: Sequence[Trial], metric: str, axis: Axes) -> None:
    first = found.objectives[0].metric
    rows = found.searched[found.searched["status"] == DONE]
    axis.scatter(rows[first], rows[metric], s=12, color=QUIET, zorder=1)
    points = sorted(((trial.metrics or {})[first], (trial.metrics or {})[metric]) for trial in leading)
    axis.plot(*zip(*points, strict=True), color=BLUE, marker="o", markersize=4.5, linewidth=1.2, zorder=2)
    defaults = rows[rows["trial"] == 0]
    axis.scatter(defaults[first], defaults[metric], s=34, color=RED, marker="D", zorder=3)
    axis.set_xlabel(_named(first))
    axis.set_ylabel(_named(metric))
    axis.margins(0.08)
    plots.tidy(axis)


def _by_trial(found: SearchResults) -> Mapping[int, float]:
    """Place each trial at its number."""
    return {number: float(number) for number in found.searched["trial"]}


def _compute(found: SearchResults) -> Mapping[int, float]:
    """Add up the streamed seconds until the end of each trial, in the order of their numbers."""
    return dict(zip(found.searched["trial"], found.searched["streamed_s"].cumsum(), strict=True))


def _progress(found: SearchResults, places: Mapping[int, float], label: str, axis: Axes) -> None:
    """Draw every trial at its place on the axis, and the best so far."""
    first = found.objectives[0].metric
    rows = found.searched[found.searched["status"] != FAILED].dropna(subset=[first])
    for part, colour in ((rows[rows["status"] == DONE], QUIET), (rows[rows["status"] != DONE], "none")):
        axis.scatter(part["trial"].map(places), part[first], s=16, facecolors=colour, edgecolors=QUIET)
    _best(found, places, BLUE, axis)
    axis.set_xlabel(label)
    axis.set_ylabel(_named(first))
    axis.margins(0.06)
    plots.tidy(axis)


def _best_by_compute(searches: Mapping[str, SearchResults], styles: Mapping[str, Style], axis: Axes) -> None:
    """Draw the best so far of each search, up to all that it has spent."""
    for name, found in searches.items():
        _best(found, _compute(found), styles[name].colour, axis, found.budget.streamed_s)
    (metric,) = {found.objectives[0].metric for found in searches.values()}
    axis.set_xlabel(STREAMED)
    axis.set_ylabel(_named(metric))
    axis.set_xlim(left=0)
    plots.tidy(axis)


def _best(
    found: SearchResults, places: Mapping[int, float], colour: str, axis: Axes, until: float | None = None
) -> None:
    """Draw the best value so far that satisfies the constraints, up to `until`."""
    first = found.objectives[0]
    kept = [trial for trial in found.full if trial.violation(found.problem) == 0]
    values = np.array([(trial.metrics or {})[first.metric] for trial in kept])
    best = np.maximum.accumulate(values) if first.better == "max" else np.minimum.accumulate(values)
    ends = [places[trial.number] for trial in kept]
    if until is not None and ends:
        ends, best = [*ends, until], np.append(best, best[-1])
    axis.step(ends, best, where="post", color=colour, linewidth=1.6)


def _parallel(found: SearchResults, trials: Sequence[Trial], axis: Axes) -> None:
    first = found.objectives[0]
    losses = np.array([first.loss(trial.metrics or {}) for trial in trials])
    height = (losses.max() - losses) / (np.ptp(losses) or 1.0)
    leading = losses.argsort(kind="stable")[: max(1, round(LEADING_SHARE * len(trials)))]
    names = [*map(_short, found.space.domains), first.metric]
    for k in [*(k for k in range(len(trials)) if k not in leading), *leading[::-1]]:
        line = [*(found.space.positions(trials[k].settings) or ()), height[k]]
        best = k in leading
        axis.plot(line, color=BLUE if best else RULE, linewidth=1.4 if best else 0.9, zorder=2 if best else 1)
    for k in range(len(names)):
        axis.axvline(k, color=QUIET, linewidth=0.7, zorder=0)
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks([0, 1], ["low", "high"])
    axis.set_ylim(-0.03, 1.03)
    plots.tidy(axis)


def _bars(shares: dict[str, float], axis: Axes) -> None:
    names = list(shares)[::-1]
    axis.barh(names, [100 * shares[name] for name in names], color=GREEN, height=0.62)
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the variance")
    plots.tidy(axis)


def _named(metric: str) -> str:
    unit = METRICS[metric].unit
    return f"{metric}, {unit}" if unit else metric


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "\u2212")


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
