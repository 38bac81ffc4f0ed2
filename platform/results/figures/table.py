"""All figures in page order: those of every report, those of an experiment, and folded details."""

from __future__ import annotations

import importlib
import pkgutil

from driftlab.platform.results.figures.base import Figure

HELPERS = ("base", "notebook", "plots", "searches", "svg", "table")  # all other files are figures of a run
STORY = ("accuracy", "pareto", "duels")
SUBJECTS = (  # of an experiment; a figure that is named nowhere comes before them
    "parameter_sweep",
    "frontier",
    "strategies",
    "training_horizon",
    "clients",
    "pruning",
    "tradeoff",
    "switching_cost",
    "switching",
    "capacity",
    "paths",
    "domains",
    "overlaps",
    "utility",
    "compute_shares",
    "load",
    "predictions",
    "estimates",
    "allocation_timeline",
    "per_workload",
)
DETAILS = ("traffic", "rates", "gains", "tuned")


def _figures() -> tuple[Figure, ...]:
    folder = importlib.import_module(str(__package__))
    names = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.name not in HELPERS]
    found: list[Figure] = [importlib.import_module(f"{__package__}.{name}").FIGURE for name in names]
    order = [*STORY, "", *SUBJECTS, *DETAILS]
    return tuple(sorted(found, key=lambda figure: order.index(figure.name if figure.name in order else "")))


FIGURES = _figures()
